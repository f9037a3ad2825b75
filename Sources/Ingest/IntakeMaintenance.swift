package import AccountStore
import AppleTokens
package import Postgres
import Spool
import Telemetry

/// What an intake does in the database from time to time: it counts the open dead letters, and settles those that were
/// kept for want of a key.
package struct IntakeMaintenance: Sendable {
    private let intake: Intake
    private let pool: ConnectionPool
    private let trust: SigningKeys.Trust
    private let interval: Duration

    /// Maintenance over connections of `pool`, every `interval` and whenever another key set is in force.
    package init(
        intake: Intake,
        pool: ConnectionPool,
        trust: SigningKeys.Trust,
        interval: Duration = .seconds(5)
    ) {
        self.intake = intake
        self.pool = pool
        self.trust = trust
        self.interval = interval
    }

    /// Works until it is cancelled.
    package func run() async {
        var settlement = LetterSettlement(intake: intake, pool: pool, trust: trust)
        var complaint = Complaint()
        while !Task.isCancelled {
            if let open = await count(), open[.keysUnavailable, default: 0] > 0, intake.storage == .database {
                do {
                    let effects = try await settlement.settle()
                    _ = complaint.settled()
                    if !effects.isNone { await report(effects) }
                } catch {
                    // Some letters may be settled already.
                    intake.durable.forget(.unverified)
                    if !Task.isCancelled, complaint.isDue("\(error)") {
                        intake.log.warning(
                            "letters that were kept for want of a key could not be settled; trying again",
                            ["error": "\(error)"]
                        )
                    }
                }
            }
            await intake.keys.replacement.wait(atMost: interval)
        }
    }

    /// Counts the open dead letters once; what fails is the writer's to report.
    private func count() async -> [DeadLetterReason: Int]? {
        intake.budget.countingBegan()
        guard
            let open = try? await pool.withSession({ session throws(PostgresError) in
                try DeadLetters.countOpen(in: session)
            })
        else { return nil }
        intake.budget.counted(open)
        // Another daemon or an operator may have settled any of them since the last count.
        intake.durable.forget(.unverified)
        for reason in DeadLetterReason.allCases {
            intake.metrics.deadLetters.gauge(reason.rawValue).set(open[reason, default: 0])
        }
        return open
    }

    private func report(_ effects: LetterSettlement.Effects) async {
        intake.log.notice(
            "letters that were kept for want of a key were settled",
            ["replayed": "\(effects.replayed)", "discarded": "\(effects.discarded)"]
        )
        // There is room again.
        _ = await count()
    }
}
