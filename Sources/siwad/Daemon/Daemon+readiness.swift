import AppleTokens
import Ingest
import NotificationServer
import Postgres
import Settings
import Telemetry

extension Daemon {
    /// The conditions under which notifications can be accepted durably.
    func checks() async -> [ReadinessCheck] {
        await databaseChecks() + [keysCheck(), drainingCheck()]
    }

    /// Waits until every condition holds, then says so: to the log and to `onReady`. What takes long is logged.
    func announceReadiness(to onReady: @Sendable (DaemonAddresses) async -> Void) async {
        var pause = Duration.milliseconds(2)
        var isWarned = false
        while !Task.isCancelled {
            let missing = await checks().filter { !$0.isReady }
            if missing.isEmpty, let addresses = addresses {
                log.notice(
                    "ready",
                    [
                        "notifications": addresses.notifications, "operations": addresses.operations,
                        "after": "\((ContinuousClock.now - Main.start).milliseconds) ms",
                    ]
                )
                await onReady(addresses)
                return await untilCancelled()
            }
            if pause > .seconds(1), !isWarned, !missing.isEmpty {
                isWarned = true
                let names = missing.map { "\($0.name): \($0.detail ?? "not yet")" }.joined(separator: "; ")
                log.warning("not ready yet: notifications are answered 503", ["missing": names])
            }
            // A cancelled sleep ends the loop.
            try? await Task.sleep(for: pause)
            pause = min(pause * 2, .seconds(2))
        }
    }

    /// Where the daemon can be reached, once it can.
    private var addresses: DaemonAddresses? { state.addresses(configuration) }

    /// The database and its schema, which is not in question while nothing can be stored there.
    private func databaseChecks() async -> [ReadinessCheck] {
        let unasked = ReadinessCheck(name: "schema", isReady: true, detail: "not asked, PostgreSQL is away")
        switch intake.storage {
        case .database: break
        case .spool: return [spooling, unasked]
        case .nowhere(let cause): return [ReadinessCheck(name: "database", isReady: false, detail: cause), unasked]
        }
        do {
            // A round trip, because a connection through a wire that is dead looks as good as any.
            let schema: SchemaVersion?
            if let probes {
                schema = try await probes.withSession { session throws(PostgresError) in
                    try SchemaVersion.read(in: session)
                }
            } else {
                // One that is in use for something else is no sign that anything is wrong; the writer looks at its own.
                schema = try await pool.withSessionIfFree(deadline: .seconds(1)) { session throws(PostgresError) in
                    try SchemaVersion.read(in: session)
                }
            }
            let schemaCheck =
                schema.map(Self.schemaCheck)
                ?? ReadinessCheck(name: "schema", isReady: true, detail: "not asked, the connections are in use")
            return [ReadinessCheck(name: "database", isReady: true), schemaCheck]
        } catch {
            // The writer finds out by itself; until then its next batch goes to the spool as well.
            guard intake.spoolBytes == nil else { return [spooling, unasked] }
            return [ReadinessCheck(name: "database", isReady: false, detail: error.description), unasked]
        }
    }

    private static func schemaCheck(_ version: SchemaVersion) -> ReadinessCheck {
        switch version {
        case .current: ReadinessCheck(name: "schema", isReady: true)
        // Between a migration and the restart of the last daemon they all see this, and go on working.
        case .newer: ReadinessCheck(name: "schema", isReady: true, detail: "newer than this siwad; restart it")
        case .unfit(let problem): ReadinessCheck(name: "schema", isReady: false, detail: problem)
        }
    }

    private var spooling: ReadinessCheck {
        let bytes = intake.spoolBytes ?? 0
        return ReadinessCheck(
            name: "database",
            isReady: true,
            detail: "PostgreSQL is away; notifications wait in the spool, \(bytes) bytes"
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
        return ReadinessCheck(name: "keys", isReady: false, detail: "no key set that is trusted from \(source)")
    }

    private func drainingCheck() -> ReadinessCheck {
        let isDraining = state.tellWhetherDraining()
        return ReadinessCheck(name: "accepting", isReady: !isDraining, detail: isDraining ? "shutting down" : nil)
    }

    private func untilCancelled() async {
        // A stream that nothing is sent into ends with its task.
        for await _ in AsyncStream<Never>.makeStream().stream {}
    }
}

extension Duration {
    /// Whole milliseconds.
    var milliseconds: Int64 {
        components.seconds * 1_000 + components.attoseconds / 1_000_000_000_000_000
    }
}
