import AccountStore
import AppleNotifications
import Postgres
import Spool
import Synchronization
import Telemetry

/// The second task of the writer: makes connections, and brings what is in the spool into the database.
extension NotificationWriter {
    /// How often the spool directory is looked at, and whether it can be written to if it could not.
    private static let interval = Duration.seconds(5)

    /// Works until the intake is closed.
    func recover() async {
        await scan()
        var (pauses, drainPauses) = (Backoff(), Backoff())
        var isFirst = true
        while !intake.isClosed {
            if line.withLock({ $0.connection != nil }) {
                do {
                    try await drain()
                    drainPauses = Backoff()
                    await alarm.wait(atMost: Self.interval)
                    await lookAtIdleConnection()
                } catch {
                    drainFailed(error)
                    await alarm.wait(atMost: drainPauses.next())
                }
                await scan()
                continue
            }
            // A connection that never stored anything proves nothing: then the next one may wait.
            if line.withLock({ $0.hasStored }) {
                pauses = Backoff()
            } else if !isFirst {
                await alarm.wait(atMost: pauses.next())
            }
            isFirst = false
            await reconnect()
            await tryFailedSpool()
        }
    }

    /// A connection on which batches can be stored.
    func connect(within time: Duration? = nil) async throws -> PostgresConnection {
        if let preparation = line.withLock({ $0.preparation }) {
            try await preparation()
            line.withLock { $0.preparation = nil }
        }
        var settings = settings
        if let time { settings.connectTimeout = min(time, settings.connectTimeout) }
        let connection = try await PostgresConnection.connect(settings)
        do throws(PostgresError) {
            let now = intake.now()
            try await connection.withSession { session throws(PostgresError) in
                try Notifications.checkWritable(in: session)
                try session.execute(script: Notifications.writerSettings)
                try Notifications.ensurePartitions(from: now - .seconds(2 * 86_400), through: now, in: session)
            }
        } catch {
            await connection.close()
            throw error
        }
        return connection
    }

    // MARK: - The database

    /// Hands a connection to the other task, once it has proved itself on what waits longest.
    private func reconnect() async {
        line.withLock { $0.hasStored = false }
        do {
            let connection = try await connect()
            do {
                var partitions = PartitionHorizon()
                let progress = try await drainOnce(on: connection, &partitions)
                connected(connection, hasStored: progress.requests > 0)
            } catch {
                await connection.close()
                throw error
            }
        } catch {
            guard !intake.isClosed else { return }
            let isDue = line.withLock { line in
                intake.storage = storageWithoutDatabase(line)
                return line.databaseComplaint.isDue("\(error)")
            }
            if intake.spool != nil { intake.queue.resume() }
            reportAway(error, isDue: isDue)
        }
    }

    private func connected(_ connection: PostgresConnection, hasStored: Bool) {
        let wasAway = line.withLock { line in
            line.connection = connection
            line.hasStored = hasStored
            line.partitions = PartitionHorizon()
            intake.storage = .database
            return line.databaseComplaint.settled()
        }
        intake.metrics.databaseUp.set(1)
        intake.queue.resume()
        if wasAway { intake.log.notice("PostgreSQL can be written to again") }
    }

    /// Nothing can be stored on the connection: what comes in goes elsewhere from here on.
    func lost(_ connection: PostgresConnection, _ error: any Error) async {
        // Before the connection is given up, since whoever makes the next one resumes the queue.
        let waiting = intake.spool == nil ? intake.queue.pause() : []
        let isDue = line.withLock { line -> Bool? in
            // There may be another one meanwhile.
            guard line.connection === connection || line.connection == nil else { return nil }
            line.connection = nil
            intake.storage = storageWithoutDatabase(line)
            return line.databaseComplaint.isDue("\(error)")
        }
        if let isDue {
            reportAway(error, isDue: isDue)
        } else {
            intake.queue.resume()
        }
        answerUnavailable(waiting)
        alarm.ring()
        await connection.close()
    }

    /// Finds out that PostgreSQL went away while nothing came in, so that the next notification need not.
    private func lookAtIdleConnection() async {
        let idle = line.withLock { line -> PostgresConnection? in
            defer { line.isInUse = false }
            return line.isInUse ? nil : line.connection
        }
        guard let idle else { return }
        do throws(PostgresError) {
            try await idle.withSession { session throws(PostgresError) in
                try Notifications.checkWritable(in: session)
            }
        } catch {
            guard !intake.isClosed else { return }
            await lost(idle, error)
        }
    }

    private func storageWithoutDatabase(_ line: borrowing Line) -> Storage {
        if intake.spool == nil { return .nowhere(cause: "PostgreSQL can't be written to") }
        if let cause = line.spoolComplaint.cause { return .nowhere(cause: cause) }
        return .spool
    }

    private func reportAway(_ error: any Error, isDue: Bool) {
        intake.metrics.databaseUp.set(0)
        guard isDue else { return }
        let consequence =
            intake.spool == nil ? "notifications are answered 503 until it can" : "notifications wait in the spool"
        intake.log.error("PostgreSQL can't be written to; \(consequence)", ["error": "\(error)"])
    }

    private func drainFailed(_ error: any Error) {
        guard !intake.isClosed, line.withLock({ $0.databaseComplaint.isDue("\(error)") }) else { return }
        intake.log.error("what is in the spool can't be stored; trying again", ["error": "\(error)"])
    }

    // MARK: - The spool

    /// Stores what is in the spool, on a connection of its own, so that what comes in need not wait for it.
    private func drain() async throws {
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
            if requests > 0 { intake.log.notice("stored what was in the spool", ["requests": "\(requests)"]) }
        } catch {
            await connection.close()
            throw error
        }
        await connection.close()
    }

    /// Stores the oldest batch.
    ///
    /// - Returns: how much of the spool is dealt with.
    private func drainOnce(
        on connection: PostgresConnection,
        _ partitions: inout PartitionHorizon
    ) async throws -> (files: Int, requests: Int) {
        guard let spool = intake.spool, !spool.isEmpty else { return (0, 0) }
        let start = ContinuousClock.now
        let (batch, setAside) = try await spool.oldest(atMost: intake.limits.batch)
        report(setAside)
        guard !batch.files.isEmpty else { return (setAside.count, 0) }
        let submissions = judged(batch.records)
        do {
            let settled = try await Self.commit(submissions, from: .spool, on: connection, partitions)
            partitions.ensured(partitions.missing(for: submissions))
            try await spool.remove(batch)
            intake.measure(settled, since: start)
        } catch {
            // What the server refuses may lie in this batch alone: the others go first the next time.
            if let error = error as? PostgresError, !error.isConnectionError { spool.postpone(batch) }
            throw error
        }
        return (setAside.count + batch.files.count, batch.records.count)
    }

    private func judged(_ records: [SpoolRecord]) -> [Submission] {
        let verifier = NotificationVerifier(policy: intake.policy)
        return records.map { Submission($0, judgedBy: verifier) }
    }

    /// Looks for files that came or went, and for such that are nothing of ours.
    private func scan() async {
        guard let spool = intake.spool else { return }
        do {
            report(try await spool.scan())
        } catch {
            spoolFailed(error)
        }
        await tryFailedSpool()
    }

    /// A daemon that isn't ready is sent nothing, so nothing would tell whether the spool works again.
    private func tryFailedSpool() async {
        guard let spool = intake.spool, line.withLock({ $0.spoolComplaint.cause != nil }) else { return }
        do {
            try await spool.check()
            spoolSucceeded()
        } catch {
            spoolFailed(error)
        }
    }

    /// Says why the spool takes nothing.
    func spoolFailed(_ error: any Error) {
        let cause = "\(error)"
        let (isAway, isDue) = line.withLock { line in
            let isDue = line.spoolComplaint.isDue(cause)
            if line.connection == nil { intake.storage = .nowhere(cause: cause) }
            return (line.connection == nil, isDue)
        }
        guard isDue else { return }
        let consequence = isAway ? "notifications are answered 503" : "PostgreSQL takes all notifications meanwhile"
        intake.log.error("the spool can't be written to; \(consequence)", ["error": cause])
    }

    /// The spool took something.
    func spoolSucceeded() {
        let wasFailing = line.withLock { line in
            guard line.spoolComplaint.settled() else { return false }
            if line.connection == nil { intake.storage = .spool }
            return true
        }
        if wasFailing { intake.log.notice("the spool can be written to again") }
    }

    private func report(_ setAside: [Spool.SetAside]) {
        for file in setAside {
            intake.metrics.spoolFilesSetAside.increment(file.reason.rawValue)
            intake.log.error(
                "a file in the spool directory was set aside; look at it, and remove it when nothing in it is needed",
                ["file": file.path, "reason": file.reason.rawValue]
            )
        }
    }
}
