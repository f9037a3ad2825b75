import AccountStore
package import Basics
package import Postgres
import Synchronization
package import Telemetry

/// Publishes changes: soon after this daemon stored one, and every second what others stored.
///
/// Any number of daemons publish at the same time. The lock of a round in the database lets one of them work, and the others
/// continue without waiting.
package final class Publisher: Sendable {
    /// Between two rounds, so that a flood of changes causes few and large ones.
    private static let pause = Duration.milliseconds(50)
    /// Until changes that other processes stored are looked for.
    private static let interval = Duration.seconds(1)
    /// For a round. It publishes everything that was committed, and the deliveries of each change: 500,000 changes for four endpoints
    /// took 28 s. A round that takes longer is cancelled, and the next one gets twice the time, because it begins again with more.
    private let usualRound: Duration
    /// How often the last round is repeated, in 0.75 s, while another session holds it up.
    private let lastRounds: Int
    private static let longestRound = Duration.seconds(3_600)
    /// Between two measurements of what waits.
    private static let measurement = Duration.seconds(10)

    private let pool: ConnectionPool
    /// Signalled after each commit of this daemon that may need a round.
    private let changes: WakeupEvent
    /// Signalled after each publication of this daemon.
    let published = WakeupEvent()
    /// The last position that this daemon published; 0 if it published nothing.
    private let lastPosition = Atomic<Int64>(0)
    private let metrics: PublicationMetrics
    private let log: Log
    private let isFinished = Atomic(false)
    private let limit: Mutex<Duration>

    package init(
        pool: ConnectionPool,
        changes: WakeupEvent,
        metrics: PublicationMetrics,
        log: Log,
        usualRound: Duration = .seconds(30),
        lastRounds: Int = 5
    ) {
        self.pool = pool
        self.changes = changes
        self.metrics = metrics
        self.log = log
        self.usualRound = usualRound
        self.lastRounds = lastRounds
        limit = Mutex(usualRound)
    }

    /// Publishes until ``finish()``, and then once more.
    package func run() async {
        var pauses = Backoff()
        // The writer reports that PostgreSQL is away.
        var (hasFailed, isReported) = (false, false)
        // The rounds in a row that another session held up.
        var heldUp = 0
        var measuredAt: ContinuousClock.Instant?
        // How long the oldest change had waited at some time.
        var known = (age: Duration.zero, at: ContinuousClock.now)
        while true {
            let isLast = isFinished.load(ordering: .acquiring) || Task.isCancelled
            // An unreachable database must not delay the shutdown.
            if isLast, hasFailed { return }
            var failure: PostgresError?
            do throws(PostgresError) {
                heldUp = try await publish() ? 0 : heldUp + 1
            } catch {
                failure = error
            }
            // Also if publication fails: then changes wait. A server that has just failed to connect is not asked a second time.
            var unmeasured = failure.flatMap { $0.isConnectionError ? $0 : nil }
            if unmeasured == nil, measuredAt.map({ .now - $0 >= Self.measurement }) ?? true {
                do throws(PostgresError) {
                    known = (try await measure(), .now)
                    measuredAt = known.at
                } catch {
                    unmeasured = error
                }
            }
            if let unmeasured {
                measuredAt = nil
                // If PostgreSQL refuses the connection, at most this long. While it is away, another metric says so.
                let isKnown = unmeasured.isConnectionError && !unmeasured.isServerAway
                metrics.age.set(isKnown ? (known.age + (.now - known.at)) / .seconds(1) : .nan)
                failure = failure ?? unmeasured
            }
            if let failure {
                if !isReported, !failure.isServerAway, failure.code != .cancelled {
                    log.warning("changes can't be published; trying again", ["error": "\(failure)"])
                    isReported = true
                }
                hasFailed = true
            } else {
                if isReported { log.notice("changes are published again") }
                (hasFailed, isReported, pauses) = (false, false, Backoff())
            }
            // Another session's round may have begun before the last change here.
            if isLast, heldUp == 0 || hasFailed || heldUp > lastRounds { return }
            if hasFailed {
                await changes.wait(atMost: pauses.next())
            } else {
                // After a round that took too long, a connection is made for each one.
                let pause = limit.withLock { $0 } > usualRound ? Self.interval : Self.pause
                // A signal during the pause ends the wait after it. A cancelled sleep ends the loop.
                try? await Task.sleep(for: pause)
                // The other session's round may have begun before a change that waits here. The pauses become longer, because
                // the session may hold the lock for hours.
                let rest = Self.interval - pause
                await changes.wait(atMost: heldUp > 0 ? min(Self.pause * (heldUp - 1), rest) : rest)
            }
        }
    }

    package func finish() {
        isFinished.store(true, ordering: .releasing)
        changes.signal()
    }

    /// Whether this daemon published this position, or a later one.
    func hasPublished(_ position: Int64) -> Bool { position <= lastPosition.load(ordering: .acquiring) }

    // MARK: - Private parts

    /// Returns false if changes wait because another session publishes, or has locked the publication.
    private func publish() async throws(PostgresError) -> Bool {
        do throws(PostgresError) {
            guard let round = try await withinLimit(Publication.publish) else {
                return try await !withinLimit(Publication.isBehind)
            }
            limit.withLock { $0 = usualRound }
            lastPosition.store(round.positions.upperBound, ordering: .releasing)
            published.signal()
            metrics.published.increment(by: round.positions.count)
            metrics.delay.record(round.delay)
        } catch {
            guard error.sqlState == .objectNotInPrerequisiteState else { throw error }
            try await rebase()
        }
        return true
    }

    /// Each statement is its own transaction: a daemon that is stopped between two of them must not hold the lock of the round.
    private func withinLimit<Result: Sendable>(
        _ work: @escaping @Sendable (borrowing Session) throws(PostgresError) -> Result
    ) async throws(PostgresError) -> Result {
        let limit = limit.withLock { $0 }
        let start = ContinuousClock.now
        do throws(PostgresError) {
            return try await within(limit, work)
        } catch {
            // A wait for a connection ends earlier.
            if error.code == .timedOut, .now - start >= limit {
                self.limit.withLock { $0 = min(limit * 2, Self.longestRound) }
            }
            throw error
        }
    }

    private func within<Result: Sendable>(
        _ limit: Duration,
        _ work: @escaping @Sendable (borrowing Session) throws(PostgresError) -> Result
    ) async throws(PostgresError) -> Result {
        guard limit > usualRound else { return try await pool.withSession(deadline: limit, work) }
        do {
            return try await pool.withConnection { connection in
                try await connection.withSession(deadline: limit) { session throws(PostgresError) in
                    try session.execute(script: "SET statement_timeout = 0")
                    return try work(session)
                }
            }
        } catch let error as PostgresError {
            throw error
        } catch {
            preconditionFailure("only PostgreSQL is asked: \(error)")
        }
    }

    /// Measures and returns how long the oldest change waits. Also finds out that the database was restored if nothing changes
    /// in it.
    private func measure() async throws(PostgresError) -> Duration {
        let state = try await pool.withSession(Publication.state)
        let age = state.age ?? .zero
        metrics.age.set(age / .seconds(1))
        // Another daemon has published what took too long here.
        if state.age == nil { limit.withLock { $0 = usualRound } }
        if !state.belongsToCluster { try await rebase() }
        return age
    }

    private func rebase() async throws(PostgresError) {
        do throws(PostgresError) {
            try await withinLimit(Publication.rebase)
            limit.withLock { $0 = usualRound }
            log.notice("the database was restored from a dump: the log of changes continues after its last position")
        } catch {
            // Another daemon did it first.
            guard error.sqlState == .objectNotInPrerequisiteState else { throw error }
        }
    }
}
