import AccountStore
import AppleTokens
import Postgres
import Spool
import Telemetry

/// The spool: what is written there while PostgreSQL is away or too slow, and how it gets into the database.
extension NotificationWriter {
    /// Time between two checks for overdue submissions. One that was there two checks ago has waited for 0.8 to 1.2 s and is
    /// overdue. That leaves 0.8 s for the disk if the response is to come within two seconds.
    private static let overdueInterval = Duration.milliseconds(400)
    /// Refused records that are tried again together: each may take as long as a lock is waited for, and no lost connection
    /// is replaced in that time.
    private static let refusedTogether = 16

    // MARK: - Writing

    /// Answers a batch from the spool, or with 503. A token that is durable already, or that comes twice, is written once.
    ///
    /// - Parameter isEarly: the writer works on the batch at the same time, and finishes it.
    func spool(_ batch: [Submission], isEarly: Bool = false) async {
        guard let spool = service.spool else { return answerUnavailable(batch) }
        // A directory that can't be used is reported by the write that follows.
        try? await spool.followDirectory()
        service.durable.spoolLost(spool.losses)
        for share in Spool.Share.allCases {
            var tokens: [[UInt8]: [Submission]] = [:]
            for submission in batch where submission.work.share == share {
                tokens[submission.work.tokenDigest, default: []].append(submission)
            }
            if !tokens.isEmpty { await write(tokens, share, to: spool, isEarly: isEarly) }
        }
    }

    private func write(
        _ tokens: [[UInt8]: [Submission]],
        _ share: Spool.Share,
        to spool: Spool,
        isEarly: Bool
    ) async {
        let unwritten = tokens.filter { !service.durable.contains($0.key, as: share) }
        let records = unwritten.values.compactMap { $0.first.map { SpoolRecord($0) } }
        do {
            if !records.isEmpty { try await spool.append(records, share: share) }
        } catch {
            acknowledge(tokens.filter { unwritten[$0.key] == nil }.values.flatMap(\.self), isEarly: isEarly)
            let refused = unwritten.values.flatMap(\.self)
            guard error.code == .shareFull else {
                spoolFailed(error)
                return answerUnavailable(refused, isEarly: isEarly)
            }
            reports.shareUsedUp(error)
            // Without a verified signature it is answered as if it were kept.
            if share == .unverified { return acknowledge(refused, isEarly: isEarly) }
            let full = IngestResponse.unavailable(.deadLetterLimit, retryAfterSeconds: 300)
            return answerUnavailable(refused, full, isEarly: isEarly)
        }
        for digest in unwritten.keys { service.durable.insert(digest, as: share) }
        acknowledge(tokens.values.flatMap(\.self), isEarly: isEarly)
        service.metrics.spooled.increment(by: records.count)
        if !records.isEmpty { spoolSucceeded() }
    }

    /// Answers the submissions of a batch whose dead letter is durable already.
    ///
    /// - Returns: the others.
    func answerDurable(_ batch: [Submission]) -> [Submission] {
        func isDurable(_ submission: Submission) -> Bool {
            guard case .deadLetter(let received, _) = submission.work else { return false }
            return service.durable.contains(received.tokenDigest, as: received.share)
        }
        guard batch.contains(where: isDurable) else { return batch }
        acknowledge(batch.filter(isDurable))
        return batch.filter { !isDurable($0) }
    }

    /// Answers what is durable, and releases its reservations: the spool limits its dead letters itself, and what comes from
    /// it is counted in the database.
    private func acknowledge(_ batch: [Submission], isEarly: Bool = false) {
        if !isEarly { releaseReservations(of: batch) }
        answer(batch.map { ($0, $0.work.responseWhenDurable) }, isEarly: isEarly)
    }

    /// Answers from the spool what PostgreSQL delays, until it is cancelled. Returns if there is no spool.
    ///
    /// A server may hang, a row may be locked, a name server may not answer. The writer continues to wait for them, but no
    /// request does. A notification that is stored by the writer and from the spool has one effect.
    func answerOverdue() async {
        guard service.spool != nil else { return }
        var newest = [UInt64(0), 0]
        var isFirst = true
        // A cancelled sleep ends the loop.
        while (try? await Task.sleep(for: Self.overdueInterval)) != nil {
            if !isFirst { apply { $0.startDelayed() } }
            isFirst = false
            newest.append(service.queue.lastNumber)
            let overdue = newest.removeFirst()
            while case let batch = service.queue.waiting(atMost: service.limits.batch, upTo: overdue), !batch.isEmpty {
                await spool(batch)
            }
            let held = service.queue.held(upTo: overdue)
            guard !held.isEmpty else { continue }
            await spool(held, isEarly: true)
            reports.answeredOverdue()
        }
    }

    // MARK: - The directory

    /// Finds files that came, went, or are not siwad's, and tries a spool again that failed.
    func scanSpool() async {
        guard let spool = service.spool else { return }
        do {
            let scan = try await spool.scan()
            service.durable.spoolLost(spool.losses)
            setAside(scan.setAside)
            reports.untrusted(scan.untrusted)
        } catch {
            spoolFailed(error)
        }
        // A daemon that is not ready receives nothing that would show that the spool works again.
        guard service.queue.writer({ $0.isSpoolFailing }) else { return }
        do {
            try await spool.check()
            spoolSucceeded()
        } catch {
            spoolFailed(error)
        }
    }

    private func spoolFailed(_ error: any Error) {
        let cause = "\(error)"
        reports.spoolFailed(cause, isAway: apply { $0.spoolFailed(cause: cause) })
    }

    private func spoolSucceeded() {
        if apply({ $0.spoolSucceeded() }) { reports.spoolWorksAgain() }
    }

    private func setAside(_ files: [Spool.SetAside]) {
        guard !files.isEmpty else { return }
        service.durable.forgetAll()
        reports.setAside(files)
    }

    // MARK: - Draining

    /// Stores the content of the spool on a connection of its own, so that live traffic need not wait for it.
    func drain() async throws {
        guard let spool = service.spool, !spool.isEmpty else { return }
        let connection = try await openConnection()
        do {
            var committer = Committer(source: .spool)
            var requests = 0
            while service.queue.writer({ $0.nextStep }) == .maintain {
                let progress = try await drainOnce(.waiting, on: connection, with: &committer)
                if progress.files == 0 { break }
                requests += progress.requests
            }
            while !service.isClosed {
                let progress = try await drainOnce(.refused, on: connection, with: &committer)
                if progress.requests == 0 { break }
                requests += progress.requests
            }
            reports.drained(requests)
        } catch {
            await connection.close()
            throw error
        }
        await connection.close()
    }

    /// Stores the oldest batch. Records that the server refuses while it accepts others are set apart, so that they delay no
    /// others. They stay in the spool, because the cause may be the server.
    ///
    /// - Returns: the files that are done, and the requests that were stored.
    func drainOnce(
        _ part: Spool.Part,
        on connection: PostgresConnection,
        with committer: inout Committer
    ) async throws -> (files: Int, requests: Int) {
        guard let spool = service.spool, spool.holds(part) else { return (0, 0) }
        let limit =
            switch part {
            case .waiting: service.limits.batch
            case .refused: Self.refusedTogether
            }
        let (found, torn) = try await spool.oldest(part, atMost: limit)
        setAside(torn)
        reports.unread(found.unread)
        guard !found.files.isEmpty else { return (torn.count, 0) }
        do {
            let batch = try await verified(found, in: spool, on: connection)
            let outcome = await store(batch, on: connection, with: &committer)
            if let failure = outcome.failure { throw failure }
            if let refusal = outcome.refusal {
                // A server that accepts nothing has a fault of its own.
                let isAccepting = outcome.stored > 0 || isLiveTrafficStored(elsewhereThan: connection)
                guard part == .refused || isAccepting else { throw refusal }
                try await spool.remove(batch, keeping: outcome.refused)
                reports.drainRefused(outcome.refused.count, refusal)
            } else {
                try await spool.remove(batch)
            }
            return (torn.count + batch.files.count, outcome.stored)
        } catch {
            // The cause may be this batch alone, or a full disk, where removing another batch makes room: others are first
            // the next time.
            if (error as? PostgresError)?.isConnectionError != true { spool.postpone(found) }
            throw error
        }
    }

    private func store(
        _ batch: Spool.Batch,
        on connection: PostgresConnection,
        with committer: inout Committer
    ) async -> Bisection {
        let verifier = NotificationVerifier(policy: service.policy)
        var current = committer
        let submissions = batch.records.map { Submission($0, judgedBy: verifier) }
        let bisection = await Bisection(submissions) { part in
            if service.isClosed { return PostgresError(.cancelled, "siwad ends") }
            let start = ContinuousClock.now
            do throws(PostgresError) {
                settle(try await current.commit(part, on: connection), on: nil, since: start)
                return nil
            } catch {
                return error
            }
        }
        committer = current
        return bisection
    }

    private func isLiveTrafficStored(elsewhereThan connection: PostgresConnection) -> Bool {
        service.queue.writer { writer in
            guard let live = writer.connection else { return false }
            return live !== connection && writer.hasStored
        }
    }

    /// Verifies the signatures of a batch again, because another process could have written a file that claims to be
    /// verified. Records with a bad signature are set aside. Records whose key is not known are reported and stay.
    private func verified(
        _ batch: Spool.Batch,
        in spool: Spool,
        on connection: PostgresConnection
    ) async throws -> Spool.Batch {
        let keys = try await keys(for: Set(batch.records.compactMap(\.keyID)), on: connection)
        let verifier = NotificationVerifier(policy: service.policy)
        var (forged, unverified) = (Set<Int>(), 0)
        for (position, record) in batch.records.enumerated() {
            guard let keyID = record.keyID else { continue }
            switch verifier.signature(ofRecorded: record.token, verifiedBy: keyID, keys: keys) {
            case .valid: break
            case .unknownKey: unverified += 1
            case .invalid: forged.insert(position)
            }
        }
        reports.unverified(unverified)
        let (rest, files) = try await spool.setAside(forged: forged, of: batch)
        setAside(files)
        return rest
    }

    /// The keys in force. If they lack one of `kids`, the stored keys too.
    private func keys(for kids: Set<String>, on connection: PostgresConnection) async throws -> KeySet {
        let keys = service.keys.keys
        guard !kids.allSatisfy(keys.contains(kid:)) else { return keys }
        do throws(PostgresError) {
            let trust = trust
            let kept = try await connection.withSession { session throws(PostgresError) in
                try SigningKeys.all(trust, in: session)
            }
            return ReplayKeys(today: keys.keys, kept: kept, problem: nil).set
        } catch {
            if error.isConnectionError { throw error }
            throw StoredKeysError(description: "the stored signing keys can't be read: \(error)")
        }
    }
}

/// The keys that verify the content of the spool can't be read. Live traffic does not need them.
struct StoredKeysError: Error, CustomStringConvertible {
    let description: String
}
