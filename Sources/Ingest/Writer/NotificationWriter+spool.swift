import AccountStore
import AppleTokens
import Postgres
import Spool
import Telemetry

/// The spool: what is written there while PostgreSQL is away or too slow, and how it gets into the database.
extension NotificationWriter {
    /// Time between two checks for overdue submissions. One that was there three checks ago has waited for 0.6 to 0.8 s and is
    /// overdue. That leaves 1.2 s for the disk if the response is to come within two seconds.
    private static let overdueInterval = Duration.milliseconds(200)
    /// Refused records that are tried again together: each may take as long as a lock is waited for, and no lost connection
    /// is replaced in that time.
    private static let refusedTogether = 16
    /// Time between two trials of a spool that nothing is written to.
    static let spoolTrial = Duration.seconds(300)

    // MARK: - Writing

    /// Answers a batch from the spool, or with 503.
    func spool(_ batch: [Submission]) async {
        answer(await write(batch), unavailable)
    }

    /// Answers a batch from the spool. A token that is durable already, or that comes twice, is written once.
    ///
    /// - Parameter isEarly: the writer works on the batch at the same time, and finishes it.
    /// - Returns: the submissions that can't be written, which have no response yet.
    private func write(_ batch: [Submission], isEarly: Bool = false) async -> [Submission] {
        guard let spool = service.spool else { return batch }
        // A directory that can't be used is reported by the write that follows.
        try? await spool.followDirectory()
        service.durable.spoolLost(spool.losses)
        var unwritten: [Submission] = []
        for share in Spool.Share.allCases {
            let tokens = Dictionary(grouping: batch.filter { $0.work.share == share }, by: \.work.tokenDigest)
            if !tokens.isEmpty { unwritten += await write(tokens, share, to: spool, isEarly: isEarly) }
        }
        return unwritten
    }

    private func write(
        _ tokens: [[UInt8]: [Submission]],
        _ share: Spool.Share,
        to spool: Spool,
        isEarly: Bool
    ) async -> [Submission] {
        let unwritten = tokens.filter { !service.durable.contains($0.key, as: share) }
        let records = unwritten.values.compactMap { $0.first.map { SpoolRecord($0) } }
        do {
            if !records.isEmpty { try await spool.append(records, share: share, mergingUpTo: service.limits.batch) }
        } catch {
            answer(tokens.filter { unwritten[$0.key] == nil }.values.flatMap(\.self), isEarly: isEarly)
            let submissions = unwritten.values.flatMap(\.self)
            guard error.code == .shareFull else {
                spoolFailed(error)
                return submissions
            }
            if faults.isDue(.share) {
                service.log.error("no more dead letters are kept until PostgreSQL is back", ["error": "\(error)"])
            }
            // Without a verified signature it is answered as if it were kept.
            let response: IngestResponse? =
                share == .unverified ? nil : .unavailable(.deadLetterLimit, retryAfterSeconds: 300)
            answer(submissions, response, isEarly: isEarly)
            return []
        }
        for digest in unwritten.keys { service.durable.insert(digest, as: share) }
        let written = Set(unwritten.values.compactMap(\.first?.number))
        let submissions = tokens.values.flatMap(\.self)
        answer(submissions.filter { written.contains($0.number) }, isEarly: isEarly, inSpool: true)
        answer(submissions.filter { !written.contains($0.number) }, isEarly: isEarly)
        service.metrics.spooled.increment(by: records.count)
        if !records.isEmpty { spoolSucceeded() }
        return []
    }

    /// Answers the submissions of a batch whose dead letter is durable already, and returns the others.
    func answerDurable(_ batch: [Submission]) -> [Submission] {
        func isDurable(_ submission: Submission) -> Bool {
            guard case .deadLetter(let received, _) = submission.work else { return false }
            return service.durable.contains(received.tokenDigest, as: received.share)
        }
        guard batch.contains(where: isDurable) else { return batch }
        answer(batch.filter(isDurable))
        return batch.filter { !isDurable($0) }
    }

    /// Answers from the spool what PostgreSQL delays, until it is cancelled. Returns if there is no spool.
    ///
    /// A server may hang, a row may be locked, a name server may not answer. The writer continues to wait for them, but no
    /// request does. A notification that is stored by the writer and from the spool has one effect.
    func answerOverdue() async {
        guard service.spool != nil else { return }
        var newest: [UInt64] = []
        // A cancelled sleep ends the loop.
        while (try? await Task.sleep(for: Self.overdueInterval)) != nil {
            newest.append(service.queue.lastNumber)
            guard newest.count > 3 else { continue }
            apply { $0.startDelayed() }
            let overdue = newest.removeFirst()
            // A slow PostgreSQL is better than a spool that can't be written to.
            guard !service.queue.writer({ $0.connection != nil && $0.isSpoolFailing }) else { continue }
            await spoolOverdue(upTo: overdue)
        }
    }

    private func spoolOverdue(upTo number: UInt64) async {
        while case let batch = service.queue.waiting(atMost: service.limits.batch, upTo: number), !batch.isEmpty {
            let unwritten = await write(batch)
            // The writer may still store them.
            guard !service.queue.putBack(unwritten) else { return }
            answer(unwritten, unavailable)
        }
        let held = service.queue.held(upTo: number)
        guard !held.isEmpty else { return }
        // The writer answers the ones that can't be written.
        guard await write(held, isEarly: true).isEmpty else { return }
        if faults.isDue(.overdue) {
            service.log.warning("PostgreSQL keeps notifications waiting; they are answered from the spool")
        }
    }

    // MARK: - The directory

    /// Finds files that came, went, or are not siwad's, and tries a spool again that failed.
    ///
    /// - Parameter trying: whether to try one that works too: a full or read-only disk must not first be noticed when PostgreSQL
    ///   is away.
    func scanSpool(trying: Bool) async {
        guard let spool = service.spool else { return }
        do {
            let scan = try await spool.scan()
            service.durable.spoolLost(spool.losses)
            setAside(scan.setAside)
            service.metrics.spoolFilesUntrusted.set(scan.untrusted.count)
            if let first = scan.untrusted.first, faults.isDue(.untrusted, first) {
                service.log.error(
                    "a file in the spool directory is not trusted and not read; if siwad wrote it, give it to siwad's user "
                        + "alone (chown, chmod 600), else remove it",
                    ["file": first, "count": "\(scan.untrusted.count)"]
                )
            }
        } catch {
            spoolFailed(error)
        }
        // A daemon that is not ready receives nothing that would show that the spool works again.
        guard trying || service.queue.writer({ $0.isSpoolFailing }) else { return }
        do {
            try await spool.check()
            spoolSucceeded()
        } catch {
            spoolFailed(error)
        }
    }

    private func spoolFailed(_ error: SpoolError) {
        service.metrics.spoolWritable.set(0)
        // Before the first connection, the database is not known to be away. If it is, that is reported too.
        let isStarting = service.queue.writer { $0.isStarting }
        let isAway = apply { $0.spoolFailed(cause: error.message) } && !isStarting
        let consequence = isAway ? "notifications are answered 503" : "PostgreSQL takes all notifications until it can"
        faults.error(.spool, "the spool can't be written to; \(consequence)", error)
    }

    private func spoolSucceeded() {
        service.metrics.spoolWritable.set(1)
        guard apply({ $0.spoolSucceeded() }) else { return }
        _ = faults.ended(.spool)
        service.log.notice("the spool can be written to again")
    }

    private func setAside(_ files: [Spool.SetAside]) {
        if !files.isEmpty { service.durable.forgetAll() }
        for file in files {
            service.metrics.spoolFilesSetAside.increment(file.reason.rawValue)
            service.log.error(
                "a file in the spool directory was set aside; look at it, and remove it when nothing in it is needed",
                ["file": file.path, "reason": file.reason.rawValue]
            )
        }
    }

    // MARK: - Draining

    /// Stores the content of the spool on a connection of its own, so that live traffic need not wait for it.
    func drain() async throws {
        guard let spool = service.spool, !spool.isEmpty else { return }
        let connection = try await openConnection()
        do {
            var requests = 0
            while service.queue.writer({ $0.nextStep }) == .maintain {
                let progress = try await drainOnce(.waiting, on: connection)
                if progress.files == 0 { break }
                requests += progress.requests
            }
            while service.queue.writer({ $0.nextStep }) == .maintain {
                let progress = try await drainOnce(.refused, on: connection)
                if progress.requests == 0 { break }
                requests += progress.requests
            }
            if requests > 0 { service.log.notice("stored what was in the spool", ["requests": "\(requests)"]) }
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
    func drainOnce(_ part: Spool.Part, on connection: PostgresConnection) async throws -> (files: Int, requests: Int) {
        guard let spool = service.spool, spool.holds(part) else { return (0, 0) }
        let limit = part == .waiting ? service.limits.batch : Self.refusedTogether
        let (found, torn) = try await spool.oldest(part, atMost: limit)
        setAside(torn)
        if let error = found.unread {
            let advice = "it stays and is tried again: give it to siwad's user, or check the disk"
            faults.error(.unread, "a file in the spool can't be read; \(advice)", error)
        }
        guard !found.files.isEmpty else { return (torn.count, 0) }
        do {
            let (batch, unverified) = try await verified(found, in: spool, on: connection)
            let verifier = NotificationVerifier(policy: service.policy)
            let outcome = await Bisection(batch.records.map { Submission($0, judgedBy: verifier) }) { part in
                if service.isClosed { return PostgresError(.cancelled, "siwad ends") }
                return await attempt(part, with: spoolCommitter, on: connection)
            }
            if let failure = outcome.failure { throw failure }
            if let refusal = outcome.refusal, part == .waiting, outcome.stored == 0 {
                // A server that accepts nothing, also from live traffic, has a fault of its own. One refusal is none.
                let isAccepting = service.queue.writer { $0.connection !== connection && $0.hasStored }
                guard isAccepting || batch.records.count == 1 else { throw refusal }
            }
            try await spool.remove(batch, keeping: outcome.refused)
            report(unverified: unverified.subtracting(outcome.refused).count)
            if let refusal = outcome.refusal, faults.isDue(.refusal, "\(refusal)") {
                let consequence = "they stay there as .refused.spool and are tried again"
                service.log.error(
                    "PostgreSQL refuses notifications that wait in the spool; \(consequence)",
                    ["count": "\(outcome.refused.count)", "error": refusal.advised]
                )
            }
            return (torn.count + batch.files.count, outcome.stored)
        } catch {
            // The cause may be this batch alone, or a full disk, where removing another batch makes room: others are first
            // the next time.
            if (error as? PostgresError)?.isConnectionError != true { spool.postpone(found) }
            throw error
        }
    }

    /// Verifies the signatures of a batch again, because another process could have written a file that claims to be
    /// verified. Records with a bad signature are set aside.
    ///
    /// - Returns: the other records, and the positions among them of the records whose key is not known.
    private func verified(
        _ batch: Spool.Batch,
        in spool: Spool,
        on connection: PostgresConnection
    ) async throws -> (batch: Spool.Batch, unverified: Set<Int>) {
        let keys = try await keys(for: Set(batch.records.compactMap(\.keyID)), on: connection)
        let verifier = NotificationVerifier(policy: service.policy)
        var (forged, unverified) = (Set<Int>(), Set<Int>())
        for (position, record) in batch.records.enumerated() {
            guard let keyID = record.keyID else { continue }
            switch verifier.signature(ofRecorded: record.token, verifiedBy: keyID, keys: keys) {
            case .valid: break
            // Each forged record before it is removed.
            case .unknownKey: unverified.insert(position - forged.count)
            case .invalid: forged.insert(position)
            }
        }
        let (rest, files) = try await spool.setAside(forged: forged, of: batch)
        setAside(files)
        return (rest, unverified)
    }

    /// Counts and logs the records that were stored although their signatures could not be verified again.
    private func report(unverified count: Int) {
        guard count > 0 else { return }
        service.metrics.spoolUnverified.increment(by: count)
        guard faults.isDue(.unverified) else { return }
        service.log.warning(
            "notifications from the spool could not be verified again because their keys are not known; they are stored "
                + "as verified at receipt: check that only siwad writes to the spool directory",
            ["count": "\(count)"]
        )
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
