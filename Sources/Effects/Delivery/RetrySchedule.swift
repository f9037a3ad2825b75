/// When a delivery is attempted again.
package struct RetrySchedule: Sendable, Equatable {
    package enum Decision: Sendable, Equatable {
        case retry(after: Duration)
        /// All attempts are made.
        case dead
    }

    /// The share by which a delay is longer or shorter at most, so that many deliveries that failed together don't return
    /// together.
    static let spread = 0.2

    /// The time before each further attempt.
    package let delays: [Duration]

    package init(_ delays: [Duration]) {
        self.delays = delays
    }

    /// - Parameters:
    ///   - attempts: the number of attempts that were made, at least one; all failed.
    ///   - jitter: a random number from -1 to 1.
    package func decision(after attempts: Int, jitter: Double) -> Decision {
        guard delays.indices.contains(attempts - 1) else { return .dead }
        return .retry(after: delays[attempts - 1] * (1 + Self.spread * jitter))
    }
}
