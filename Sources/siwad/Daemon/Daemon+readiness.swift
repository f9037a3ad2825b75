import AccountStore
import AppleTokens
import Basics
import Ingest
import Postgres
import Settings
import Telemetry
import WebServer

extension Daemon {
    /// The conditions under which notifications can be accepted durably.
    func checks() async -> [ReadinessCheck] {
        let database = await databaseChecks()
        return database + [keysCheck(), drainingCheck(), state.instance(configuration).readinessCheck]
    }

    /// Waits until all conditions hold, then writes a log message and calls `onReady`. Warns once if it takes long. Reports
    /// the state to systemd until the task is cancelled.
    func announceReadiness(to systemd: Systemd?, _ onReady: @Sendable (DaemonAddresses) async -> Void) async {
        var pause = Duration.milliseconds(2)
        var isWarned = false
        while !Task.isCancelled {
            let checks = await checks()
            let isReady = checks.allSatisfy(\.isReady)
            if isReady, let addresses = state.addresses(configuration) {
                log.notice(
                    "ready",
                    [
                        "notifications": addresses.notifications, "operations": addresses.operations,
                        "after": "\((ContinuousClock.now - Main.start).milliseconds) ms",
                    ]
                )
                systemd?.ready(status: Self.status(checks))
                await onReady(addresses)
                await reportStatus(to: systemd)
                return
            }
            if pause > .seconds(1), !isReady {
                // Or systemd would end the start of a daemon that a restart doesn't make ready.
                systemd?.ready(status: Self.status(checks))
                if !isWarned {
                    isWarned = true
                    let missing = Self.missing(checks)
                    log.warning("not ready yet: notifications are answered 503", ["missing": missing])
                }
            }
            // A cancelled sleep ends the loop.
            try? await Task.sleep(for: pause)
            pause = min(pause * 2, .seconds(2))
        }
    }

    /// Keeps the status that systemd shows up to date, until the task is cancelled.
    private func reportStatus(to systemd: Systemd?) async {
        guard let systemd else {
            // Ends with the task: this gate never opens.
            _ = await Gate().wait()
            return
        }
        do {
            while true {
                try await Task.sleep(for: .seconds(5))
                systemd.ready(status: Self.status(await checks()))
            }
        } catch {
            // The shutdown cancelled the sleep.
        }
    }

    /// The state in one line.
    private static func status(_ checks: [ReadinessCheck]) -> String {
        guard checks.allSatisfy(\.isReady) else { return "answering 503: \(missing(checks))" }
        let details = checks.filter { $0.name == "database" || $0.name == "schema" }.compactMap(\.detail)
        return (["accepting notifications"] + details).joined(separator: "; ")
    }

    private static func missing(_ checks: [ReadinessCheck]) -> String {
        checks.filter { !$0.isReady }.map { "\($0.name): \($0.detail ?? "not yet")" }.joined(separator: "; ")
    }

    /// Database and schema. The schema is not checked while the database is unavailable.
    private func databaseChecks() async -> [ReadinessCheck] {
        let unasked = ReadinessCheck(name: "schema", isReady: true, detail: "not checked, PostgreSQL is unavailable")
        switch intake.storage {
        case .database: break
        case .spool: return [spooling, unasked]
        case .nowhere(let cause): return [ReadinessCheck(name: "database", isReady: false, detail: cause), unasked]
        }
        do {
            let schema = try await currentSchema()
            let schemaCheck =
                schema.map(Self.schemaCheck)
                ?? ReadinessCheck(name: "schema", isReady: true, detail: "not checked, the connections are in use")
            return [ReadinessCheck(name: "database", isReady: true), schemaCheck]
        } catch let error where error.sqlState == .tooManyConnections {
            // The writer has its connection, and notices by itself if it is lost.
            let schemaCheck = ReadinessCheck(name: "schema", isReady: true, detail: "not checked, \(error.message)")
            return [ReadinessCheck(name: "database", isReady: true), schemaCheck]
        } catch {
            // The writer has not noticed yet; its next batch will go to the spool.
            guard intake.spoolBytes == nil else { return [spooling, unasked] }
            return [ReadinessCheck(name: "database", isReady: false, detail: error.description), unasked]
        }
    }

    /// The schema, by a round trip, because a dead connection is not recognizable otherwise; nil if the connections are in use.
    private func currentSchema() async throws(PostgresError) -> SchemaVersion? {
        let start = ContinuousClock.now
        do throws(PostgresError) {
            return try await schemaInOneAttempt()
        } catch let error where error.code == .connectionLost && .now - start < .milliseconds(500) {
            // The server may have ended only this connection. Another one shows whether it is available. If the connection was
            // silent instead, a second attempt would make the probe wait for longer than its two seconds.
            return try await schemaInOneAttempt()
        }
    }

    private func schemaInOneAttempt() async throws(PostgresError) -> SchemaVersion? {
        if let probes { return try await probes.withSession(readSchema) }
        // A connection in use is not a fault. The writer checks its own connection.
        return try await pool.withSessionIfFree(deadline: .seconds(1), readSchema)
    }

    private func readSchema(in session: borrowing Session) throws(PostgresError) -> SchemaVersion {
        let schema = try SchemaVersion.read(in: session)
        // The identity is no condition, and a role may lack the right to read it.
        state.databaseIdentified(try? DatabaseHealth.identity(in: session))
        return schema
    }

    private static func schemaCheck(_ version: SchemaVersion) -> ReadinessCheck {
        switch version {
        case .current: ReadinessCheck(name: "schema", isReady: true)
        // Normal between a migration and the restart of the daemons; they continue to work.
        case .newer: ReadinessCheck(name: "schema", isReady: true, detail: "newer than this siwad; restart it")
        case .unfit(let problem): ReadinessCheck(name: "schema", isReady: false, detail: problem)
        }
    }

    private var spooling: ReadinessCheck {
        let bytes = intake.spoolBytes ?? 0
        return ReadinessCheck(
            name: "database",
            isReady: true,
            detail: "PostgreSQL is unavailable; notifications wait in the spool, \(bytes) bytes"
        )
    }

    private func keysCheck() -> ReadinessCheck {
        let keys = intake.keys.keys
        guard keys.isEmpty else {
            let origin = keys.fetchedAt.map { "fetched \($0)" } ?? "kept from an earlier run, confirmed"
            let age = keys.confirmedAt.map { ", \(WallTime.now().duration(since: $0).rounded) ago" } ?? ""
            return ReadinessCheck(name: "keys", isReady: true, detail: "\(keys.keys.count), \(origin)\(age)")
        }
        let source = configuration.name(of: .keysURL)
        return ReadinessCheck(name: "keys", isReady: false, detail: "no trusted key set from \(source)")
    }

    private func drainingCheck() -> ReadinessCheck {
        let isDraining = state.reportDraining()
        return ReadinessCheck(name: "accepting", isReady: !isDraining, detail: isDraining ? "shutting down" : nil)
    }
}
