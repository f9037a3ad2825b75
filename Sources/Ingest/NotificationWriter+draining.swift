import AccountStore
import AppleTokens
import Postgres
import Spool
import Synchronization
import Telemetry

/// The way of what is in the spool into the database.
extension NotificationWriter {
    /// Stores what is in the spool, on a connection of its own, so that what comes in need not wait for it.
    func drain() async throws {
        guard let spool = intake.spool, !spool.isEmpty else { return }
        let connection = try await connect()
        do {
            var partitions = PartitionHorizon()
            var requests = 0
            while !intake.isClosed, line.withLock({ $0.connection != nil }) {
                let progress = try await drainOnce(on: connection, &partitions)
                if progress.files == 0 { break }
                requests += progress.requests
            }
            while case let stored = try await retryRefused(on: connection, &partitions), stored > 0 {
                requests += stored
            }
            if requests > 0 { intake.log.notice("stored what was in the spool", ["requests": "\(requests)"]) }
        } catch {
            await connection.close()
            throw error
        }
        await connection.close()
    }

    /// Stores the oldest batch. Where the server refuses it while it takes others, what it refuses is set apart, so that it
    /// holds nothing else up. It stays in the spool: why it is refused may lie with the server.
    ///
    /// - Returns: how much of the spool is dealt with.
    func drainOnce(
        on connection: PostgresConnection,
        _ partitions: inout PartitionHorizon
    ) async throws -> (files: Int, requests: Int) {
        guard let spool = intake.spool, spool.holds(.waiting) else { return (0, 0) }
        let (found, setAside) = try await spool.oldest(atMost: intake.limits.batch)
        report(setAside)
        reportUnread(found.unread)
        guard !found.files.isEmpty else { return (setAside.count, 0) }
        do {
            let batch = try await verified(found, in: spool, on: connection)
            let outcome = await store(judged(batch.records), on: connection, &partitions)
            if let failure = outcome.failure { throw failure }
            guard let refusal = outcome.refusal else {
                try await spool.remove(batch)
                return (setAside.count + batch.files.count, batch.records.count)
            }
            // A server that takes nothing has a fault of its own.
            guard outcome.stored > 0 || isTakingOthers(than: connection) else { throw refusal }
            try await spool.setApart(outcome.refused, of: batch)
            reportRefused(outcome.refused.count, refusal)
            return (setAside.count + batch.files.count, outcome.stored)
        } catch {
            // What is the matter may lie in this batch alone, or be that the disk is full, where another one that can be
            // removed makes room: the others go first the next time.
            if (error as? PostgresError)?.isConnectionError != true { spool.postpone(found) }
            throw error
        }
    }

    /// What is in the spool can't be stored at present.
    func drainFailed(_ error: any Error) {
        guard !intake.isClosed, line.withLock({ $0.databaseComplaint.isDue("\(error)") }) else { return }
        intake.log.error("what is in the spool can't be stored; trying again", ["error": "\(error)"])
    }

    // MARK: - Private parts

    /// So many of those that were refused are tried again together: each may take as long as a lock is waited for, and no
    /// lost connection is replaced meanwhile.
    private static let refusedTogether = 16

    /// Tries some of those again that were refused earlier; the others come first the next time.
    ///
    /// - Returns: how many were stored.
    private func retryRefused(
        on connection: PostgresConnection,
        _ partitions: inout PartitionHorizon
    ) async throws -> Int {
        guard let spool = intake.spool, spool.holds(.refused), !intake.isClosed else { return 0 }
        let (found, setAside) = try await spool.oldest(.refused, atMost: Self.refusedTogether)
        report(setAside)
        reportUnread(found.unread)
        let batch = try await verified(found, in: spool, on: connection)
        let outcome = await store(judged(batch.records), on: connection, &partitions)
        if let failure = outcome.failure {
            spool.postpone(batch)
            throw failure
        }
        try await spool.setApart(outcome.refused, of: batch)
        if let refusal = outcome.refusal { reportRefused(outcome.refused.count, refusal) }
        return outcome.stored
    }

    /// Stores submissions, as far as the server takes them. Nothing of them was tried that isn't found in the result.
    private func store(
        _ submissions: [Submission],
        on connection: PostgresConnection,
        _ partitions: inout PartitionHorizon
    ) async -> Sieve {
        var horizon = partitions
        let sieve = await Sieve(submissions) { part in
            if intake.isClosed { return PostgresError(.cancelled, "siwad ends") }
            let start = ContinuousClock.now
            switch await Self.attempt(part, on: connection, horizon) {
            case .success(let settled):
                horizon.ensured(horizon.missing(for: part))
                reportRejected(settled)
                intake.remember(settled)
                intake.measure(settled, from: .spool, since: start)
                return nil
            case .failure(let error):
                return error
            }
        }
        partitions = horizon
        return sieve
    }

    private static func attempt(
        _ part: [Submission],
        on connection: PostgresConnection,
        _ partitions: PartitionHorizon
    ) async -> Result<[Settled], PostgresError> {
        do throws(PostgresError) {
            return .success(try await commit(part, from: .spool, on: connection, partitions))
        } catch {
            return .failure(error)
        }
    }

    /// Whether the connection on which live traffic is stored has stored something.
    private func isTakingOthers(than connection: PostgresConnection) -> Bool {
        line.withLock { line in
            guard let live = line.connection else { return false }
            return live !== connection && line.hasStored
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
        let verifier = NotificationVerifier(policy: intake.policy)
        var (forged, unverified) = (Set<Int>(), 0)
        for (position, record) in batch.records.enumerated() {
            guard let keyID = record.keyID else { continue }
            switch verifier.signature(ofRecorded: record.token, verifiedBy: keyID, keys: keys) {
            case .valid: break
            case .unknownKey: unverified += 1
            case .invalid: forged.insert(position)
            }
        }
        reportUnverified(unverified)
        let (rest, setAside) = try await spool.setAside(forged: forged, of: batch)
        report(setAside)
        return rest
    }

    /// The keys in force. If they lack one of `kids`, the stored keys too.
    private func keys(for kids: Set<String>, on connection: PostgresConnection) async throws -> KeySet {
        let keys = intake.keys.keys
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

    private func reportUnverified(_ count: Int) {
        guard count > 0 else { return }
        intake.metrics.spoolUnverified.increment(by: count)
        guard line.withLock({ $0.unverifiedComplaint.isDue("") }) else { return }
        intake.log.warning(
            "notifications from the spool could not be verified again because their keys are not known; they are stored as "
                + "verified at receipt: check that only siwad writes to the spool directory",
            ["count": "\(count)"]
        )
    }

    private func judged(_ records: [SpoolRecord]) -> [Submission] {
        let verifier = NotificationVerifier(policy: intake.policy)
        return records.map { Submission($0, judgedBy: verifier) }
    }

    private func reportRefused(_ count: Int, _ refusal: PostgresError) {
        guard count > 0, line.withLock({ $0.refusalComplaint.isDue("\(refusal)") }) else { return }
        intake.log.error(
            "PostgreSQL refuses notifications that wait in the spool; they stay there as .refused.spool and are tried again",
            ["count": "\(count)", "error": "\(refusal)"]
        )
    }
}

/// The keys that verify what is in the spool can't be read. Notifications that come in don't need them.
struct StoredKeysError: Error, CustomStringConvertible {
    /// The cause.
    let description: String
}
