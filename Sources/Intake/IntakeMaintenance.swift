import AccountStore
import AppleNotifications
public import Postgres
import Telemetry

/// What an intake needs to know from the database from time to time: how many dead letters are open.
public struct IntakeMaintenance: Sendable {
    private let intake: Intake
    private let pool: ConnectionPool
    private let interval: Duration

    /// Maintenance over connections of `pool`, every `interval`.
    public init(intake: Intake, pool: ConnectionPool, interval: Duration = .seconds(5)) {
        self.intake = intake
        self.pool = pool
        self.interval = interval
    }

    /// Works until it is cancelled.
    public func run() async {
        while !Task.isCancelled {
            await once()
            // A cancelled sleep is the wanted end.
            try? await Task.sleep(for: interval)
        }
    }

    /// Counts the open dead letters once; what fails is the writer's to report.
    func once() async {
        intake.budget.countingBegan()
        guard
            let open = try? await pool.withSession({ session throws(PostgresError) in
                try DeadLetters.countOpen(in: session)
            })
        else { return }
        intake.budget.counted(open)
        for reason in DeadLetterReason.allCases {
            intake.metrics.deadLetters.gauge(reason.rawValue).set(open[reason, default: 0])
        }
    }
}
