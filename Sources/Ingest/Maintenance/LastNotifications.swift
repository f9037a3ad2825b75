import AccountStore
import AppleTokens
import Postgres
import Telemetry

/// Reads from the database when the last notification of each app was received, for the metric: a daemon that was restarted
/// may not receive another one for weeks. The metric of an app without a stored notification stays unknown.
struct LastNotifications: Sendable {
    let service: IngestService
    let pool: ConnectionPool

    /// Reads them once the database is there, and again after each change of the policy, until it is cancelled.
    func run() async {
        var known: Int?
        while !Task.isCancelled {
            // Before the apps are read: a policy that is replaced in between is read once more.
            let version = service.policyVersion
            if version != known, service.storage == .database, await read() { known = version }
            // A cancelled sleep ends the loop.
            try? await Task.sleep(for: .seconds(1))
        }
    }

    private func read() async -> Bool {
        // The writer reports that PostgreSQL is away.
        let times = try? await pool.withSession { session throws(PostgresError) in
            try DatabaseHealth.lastNotifications(in: session)
        }
        guard let times else { return false }
        let now = service.now()
        for (app, time) in times {
            // Another daemon's clock may be ahead.
            service.metrics.lastNotification.gauge(app.rawValue).raise(to: min(time, now).seconds)
        }
        return true
    }
}
