import AccountStore
import AppleTokens
import Postgres
import Spool
import Synchronization
import Telemetry

/// The second task of the writer: makes connections, and sees to it that what is in the spool comes into the database.
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
                await prepareBeside()
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
            await scan()
        }
    }

    /// A connection on which batches can be stored.
    func connect(within time: Duration? = nil) async throws -> PostgresConnection {
        try await prepare()
        var settings = settings
        if let time { settings.connectTimeout = min(time, settings.connectTimeout) }
        let connection = try await PostgresConnection.connect(settings)
        do throws(PostgresError) {
            let now = intake.now()
            try await connection.withSession { session throws(PostgresError) in
                try Notifications.checkWritable(in: session)
                try session.execute(script: Notifications.writerSettings)
                try Notifications.ensurePartitions(from: now, through: now, in: session)
                try Notifications.plan(in: session)
            }
        } catch {
            await connection.close()
            throw error
        }
        return connection
    }

    // MARK: - The database

    /// Tells the database what it has to be told, if there is something.
    private func prepare() async throws {
        guard let preparation = line.withLock({ $0.preparation }) else { return }
        try await preparation.work()
        line.withLock { line in
            // There may be another one meanwhile.
            if line.preparation?.number == preparation.number { line.preparation = nil }
        }
    }

    /// Tells the database while what comes in is stored. What fails is tried again at the next look: whoever asked for it
    /// has said so already.
    private func prepareBeside() async {
        try? await prepare()
    }

    /// Hands a connection to the other task, once it has proved itself on what waits longest.
    private func reconnect() async {
        line.withLock { $0.hasStored = false }
        do {
            let connection = try await connect()
            do {
                var partitions = PartitionHorizon()
                let progress = try await drainOnce(on: connection, &partitions)
                connected(connection, hasStored: progress.requests > 0)
            } catch let error where error is SpoolError || error is StoredKeysError {
                // A fault of the disk or of the stored keys, and no reason to leave a database that can be written to.
                connected(connection, hasStored: false)
                drainFailed(error)
            } catch {
                await connection.close()
                throw error
            }
        } catch {
            guard !intake.isClosed else { return }
            let isDue = line.withLock { line in
                let storage = storageWithoutDatabase(line)
                if intake.spool == nil { intake.storage = storage } else { resume(storingIn: storage) }
                return line.databaseComplaint.isDue("\(error)")
            }
            reportAway(error, isDue: isDue)
        }
    }

    private func connected(_ connection: PostgresConnection, hasStored: Bool) {
        let wasAway = line.withLock { line in
            line.connection = connection
            line.hasStored = hasStored
            line.wasBarren = false
            line.partitions = PartitionHorizon()
            resume(storingIn: .database)
            return line.databaseComplaint.settled()
        }
        intake.metrics.databaseUp.set(1)
        if wasAway { intake.log.notice("PostgreSQL can be written to again") }
    }

    /// Takes what comes in, and only then says where it goes: whoever is told that siwad is ready sends at once.
    func resume(storingIn storage: Storage) {
        intake.queue.resume()
        intake.storage = storage
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

    func storageWithoutDatabase(_ line: borrowing Line) -> Storage {
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
}
