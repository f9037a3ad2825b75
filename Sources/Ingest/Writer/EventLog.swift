package import AccountStore
package import AppleTokens
import Basics
package import Postgres
import Synchronization
package import Telemetry

/// What became of a request, as the log and `siwad dev` report it. It holds no token, address or `sub`.
package enum IngestEvent: Sendable {
    /// `accountID` is nil if the database could not be asked for it.
    case stored(VerifiedNotification, RecordedNotification, accountID: Int64?)
    case deadLetter(id: Int64, DeadLetterReason)
    /// Notifications and dead letters without a line of their own, because the second had too many.
    case omitted(count: Int, what: String)
    /// Requests of one reason since the last event about it.
    case refused(reason: String, count: Int)
    case unavailable(reason: String, count: Int)

    package func write(to log: Log) {
        switch self {
        case .stored(let notification, let recorded, let accountID):
            log.info(
                "notification stored",
                [
                    "type": notification.event.rawType, "app": notification.app.rawValue,
                    "outcome": recorded.outcome.rawValue, "sessions_ended": "\(recorded.sessionsEnded)",
                    "account": accountID.map { "\($0)" } ?? "unknown", "jti": notification.id.rawValue,
                ]
            )
        case .deadLetter(let id, let reason):
            let message = "a notification became a dead letter: siwad dead-letters show \(id) explains it"
            let fields: KeyValuePairs = ["id": "\(id)", "reason": reason.rawValue]
            // The writer warns of what PostgreSQL refuses, with the cause.
            if reason == .storeRejected { log.info(message, fields) } else { log.warning(message, fields) }
        case .omitted(let count, let what):
            log.info("and \(count.grouped) more in the last second: \(what)", ["count": "\(count)"])
        case .refused(let reason, let count):
            log.warning("requests were refused; nothing is stored", ["reason": reason, "count": "\(count)"])
        case .unavailable(let reason, let count):
            log.warning("requests were answered 503, to be sent again", ["reason": reason, "count": "\(count)"])
        }
    }
}

/// Reports what became of requests.
///
/// The writer, which is the bottleneck under load, only appends or counts. ``run(asking:)`` does the rest, and reads refusals
/// from the metrics, so that they cost the endpoint nothing.
package final class EventLog: Sendable {
    /// More notifications and dead letters in a second are counted and reported together.
    static let linesPerSecond = 50
    /// Time between two events about refusals for the same reason.
    private static let refusalInterval = Duration.seconds(30)

    private enum Kind: Hashable {
        case notification(AccountEvent.Kind, NotificationOutcome)
        case deadLetter(DeadLetterReason)

        var words: String {
            switch self {
            case .notification(let kind, let outcome): "\(kind.rawValue) \(outcome.rawValue)"
            case .deadLetter(let reason): "dead letter \(reason.rawValue)"
            }
        }
    }

    private struct Refusals {
        var reported: Int
        var at: ContinuousClock.Instant?
    }

    private struct State {
        var report: @Sendable (IngestEvent) -> Void
        var isFinished = false
        /// The lines that are left in this second.
        var room = linesPerSecond
        var secondStarted = ContinuousClock.now
        var effects: [Settled.Effect] = []
        var omitted: [Kind: Int] = [:]
        /// By metric and reason.
        var refusals: [String: Refusals] = [:]
    }

    private let metrics: SiwadMetrics
    private let wakeup = WakeupEvent()
    private let state: Mutex<State>

    init(_ log: Log, metrics: SiwadMetrics) {
        self.metrics = metrics
        state = Mutex(State(report: { $0.write(to: log) }))
    }

    /// Reports to `report` from here on, instead of to the log. What happened before is not reported.
    package func redirect(to report: @escaping @Sendable (IngestEvent) -> Void) {
        let refusals = refusalCounts.mapValues { Refusals(reported: $0.count) }
        state.withLock { $0 = State(report: report, isFinished: $0.isFinished, refusals: refusals) }
    }

    /// Reports until ``finish()``.
    ///
    /// - Parameter pool: knows the accounts.
    package func run(asking pool: ConnectionPool) async {
        var isLast = false
        while !isLast {
            await wakeup.wait(atMost: .seconds(1))
            isLast = state.withLock { $0.isFinished }
            await reportEffects(asking: pool)
            reportRefusals()
        }
    }

    package func finish() {
        state.withLock { $0.isFinished = true }
        wakeup.signal()
    }

    /// A batch is durable.
    func settled(_ batch: [Settled]) {
        let hasLines = state.withLock { state in
            let before = state.effects.count
            for effect in batch.lazy.map(\.effect) {
                guard let kind = Self.kind(of: effect) else { continue }
                if state.room > 0 {
                    state.room -= 1
                    state.effects.append(effect)
                } else {
                    state.omitted[kind, default: 0] += 1
                }
            }
            return state.effects.count > before
        }
        if hasLines { wakeup.signal() }
    }

    // MARK: - Private parts

    /// nil for a repeated dead letter.
    private static func kind(of effect: Settled.Effect) -> Kind? {
        switch effect {
        case .recorded(let received, let recorded): .notification(received.notification.event.kind, recorded.outcome)
        case .letterKept(let received, let id): id.map { _ in .deadLetter(received.letter.reason) }
        }
    }

    private func reportEffects(asking pool: ConnectionPool) async {
        let (report, effects, omitted) = state.withLock { state in
            var omitted: [Kind: Int] = [:]
            if .now - state.secondStarted >= .seconds(1) || state.isFinished {
                (state.room, state.secondStarted) = (Self.linesPerSecond, .now)
                omitted = exchange(&state.omitted, with: [:])
            }
            return (state.report, exchange(&state.effects, with: []), omitted)
        }
        let notifications = effects.compactMap { effect -> VerifiedNotification? in
            if case .recorded(let received, _) = effect { received.notification } else { nil }
        }
        var accounts: ArraySlice<Int64?> = []
        if !notifications.isEmpty {
            // The line is more important than the account.
            let found = try? await pool.withSession(deadline: .seconds(1)) { session throws(PostgresError) in
                try Notifications.accountIDs(of: notifications, in: session)
            }
            accounts = (found ?? [])[...]
        }
        for effect in effects {
            switch effect {
            case .recorded(let received, let recorded):
                report(.stored(received.notification, recorded, accountID: accounts.popFirst() ?? nil))
            case .letterKept(let received, let id):
                if let id { report(.deadLetter(id: id, received.letter.reason)) }
            }
        }
        guard !omitted.isEmpty else { return }
        let parts = omitted.sorted { ($1.value, $0.key.words) < ($0.value, $1.key.words) }
        let what = parts.map { "\($0.value.grouped) \($0.key.words)" }.joined(separator: ", ")
        report(.omitted(count: omitted.values.reduce(0, +), what: what))
    }

    private var refusalCounts: [String: (reason: String, isRetryable: Bool, count: Int)] {
        var counts: [String: (String, Bool, Int)] = [:]
        for (reason, count) in metrics.rejections.counts { counts["refused " + reason] = (reason, false, count) }
        for (reason, count) in metrics.unavailable.counts { counts["unavailable " + reason] = (reason, true, count) }
        return counts
    }

    private func reportRefusals() {
        for (key, (reason, isRetryable, count)) in refusalCounts.sorted(by: { $0.key < $1.key }) {
            let due = state.withLock { state -> (report: @Sendable (IngestEvent) -> Void, count: Int)? in
                let last = state.refusals[key] ?? Refusals(reported: 0)
                let isEarly = last.at.map { .now - $0 < Self.refusalInterval } ?? false
                guard count > last.reported, !isEarly || state.isFinished else { return nil }
                state.refusals[key] = Refusals(reported: count, at: .now)
                return (state.report, count - last.reported)
            }
            guard let due else { continue }
            let (report, number) = due
            report(isRetryable ? .unavailable(reason: reason, count: number) : .refused(reason: reason, count: number))
        }
    }
}
