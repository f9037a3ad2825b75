package import Basics

/// Stops sending to an endpoint that fails, and finds out when it works again.
///
/// While the circuit is open, no delivery is attempted, so none uses up its attempts. From time to time one is sent as a probe.
/// A single poisonous change opens nothing: the failures must concern several changes.
package struct Circuit: Sendable, Equatable {
    package enum State: Sendable, Equatable {
        /// Failures in a row, and their changes by position.
        case closed(failures: Int, changes: Set<Int64>)
        /// `delay` is the time between two probes; `window` the number of requests at the same time after a success.
        case open(until: WallTime, delay: Duration, window: Int)
        /// The outcome of a probe is awaited, which was due at `until`.
        case probing(until: WallTime, delay: Duration, window: Int)
        /// A success closed the circuit. The number of requests at the same time doubles with each further one.
        case recovering(window: Int)
    }

    package enum Probe: String, Sendable, CaseIterable {
        /// The oldest change that is not delivered.
        case oldest
        /// The newest change with no undelivered one of its person before it. So a poisonous change that is the oldest does not
        /// keep the circuit open.
        case newest
    }

    package enum Action: Sendable, Equatable {
        /// Have at most this number of requests under way; 0 while a probe is.
        case send(limit: Int)
        case wait(until: WallTime)
        case probe(Probe)
        /// Store ``persisted``.
        case persist
    }

    /// What daemons and restarts agree on: columns of `siwa.endpoint_states`.
    package struct Persisted: Sendable, Equatable {
        /// Of the first failure since the last success.
        package var failingSince: WallTime?
        package var openUntil: WallTime?
        package var probeDelay: Duration?

        package init(failingSince: WallTime? = nil, openUntil: WallTime? = nil, probeDelay: Duration? = nil) {
            self.failingSince = failingSince
            self.openUntil = openUntil
            self.probeDelay = probeDelay
        }
    }

    static let failuresToOpen = 5
    static let changesToOpen = 3
    static let firstDelay = Duration.seconds(5)
    static let longestDelay = Duration.seconds(300)
    /// The longest pause that a receiver may ask for.
    static let longestPause = Duration.seconds(3_600)

    /// The requests at the same time while all is well.
    package let concurrency: Int
    package private(set) var state: State
    package private(set) var failingSince: WallTime?
    /// Of the latest failure since the last success here.
    package private(set) var lastFailedAt: WallTime?
    /// The receiver asked for this pause.
    private var pausedUntil: WallTime?
    private var lastProbe: Probe = .newest

    package init(concurrency: Int, _ persisted: Persisted = Persisted()) {
        self.concurrency = concurrency
        failingSince = persisted.failingSince
        state =
            if let until = persisted.openUntil, let delay = persisted.probeDelay {
                .open(until: until, delay: delay, window: 1)
            } else {
                .closed(failures: 0, changes: [])
            }
    }

    package var persisted: Persisted {
        switch state {
        // After a restart, the probe is due again.
        case .open(let until, let delay, _), .probing(let until, let delay, _):
            Persisted(failingSince: failingSince, openUntil: until, probeDelay: delay)
        case .closed, .recovering:
            Persisted(failingSince: failingSince)
        }
    }

    /// True while nothing but probes is sent.
    package var isOpen: Bool {
        switch state {
        case .open, .probing: true
        case .closed, .recovering: false
        }
    }

    /// What to do until the next input.
    package var standing: Action {
        switch state {
        case .closed: .send(limit: concurrency)
        case .open(let until, _, _): .wait(until: until)
        case .probing: .send(limit: 0)
        case .recovering(let window): .send(limit: window)
        }
    }

    /// True if no attempt has succeeded for this long; zero: never.
    package func hasFailed(for limit: Duration, at now: WallTime) -> Bool {
        guard limit > .zero, let failingSince else { return false }
        return now.duration(since: failingSince) >= limit
    }

    // MARK: - Inputs

    package mutating func attemptSucceeded(at now: WallTime) -> [Action] {
        let before = persisted
        (failingSince, lastFailedAt) = (nil, nil)
        // Requests that were under way when the receiver asked for a pause may succeed, and don't end it.
        if case .open = state, let pausedUntil, pausedUntil > now { return actions(since: before) }
        pausedUntil = nil
        switch state {
        case .closed:
            state = .closed(failures: 0, changes: [])
        // Also an attempt from before the circuit opened shows that the receiver works.
        case .open(_, _, let window), .probing(_, _, let window):
            state = .recovering(window: window)
        case .recovering(let window):
            state = window * 2 < concurrency ? .recovering(window: window * 2) : .closed(failures: 0, changes: [])
        }
        return actions(since: before)
    }

    /// - Parameters:
    ///   - change: its position.
    ///   - jitter: a random number from -1 to 1.
    package mutating func attemptFailed(change: Int64, at now: WallTime, jitter: Double) -> [Action] {
        let before = persisted
        failingSince = failingSince ?? now
        lastFailedAt = now
        switch state {
        case .closed(let failures, let changes):
            let changes = changes.union([change])
            if failures + 1 >= Self.failuresToOpen, changes.count >= Self.changesToOpen {
                open(at: now, delay: Self.firstDelay, jitter)
            } else {
                state = .closed(failures: failures + 1, changes: changes)
            }
        case .open:
            // It started before the circuit opened.
            break
        case .probing(_, let delay, _):
            open(at: now, delay: min(delay * 2, Self.longestDelay), jitter)
        case .recovering:
            open(at: now, delay: Self.firstDelay, jitter)
        }
        return actions(since: before)
    }

    /// The receiver wants no further attempt of the change, which is neither a success nor a failure of the endpoint.
    ///
    /// - Parameter jitter: a random number from -1 to 1.
    package mutating func attemptAborted(at now: WallTime, jitter: Double) -> [Action] {
        let before = persisted
        switch state {
        case .closed, .open, .recovering:
            break
        case .probing(_, let delay, let window):
            // Only another change shows whether the endpoint works.
            open(at: now, delay: delay, window: window, jitter)
        }
        return actions(since: before)
    }

    /// The receiver asked for a pause, which is no failure.
    package mutating func throttled(until: WallTime) -> [Action] {
        let before = persisted
        pausedUntil = max(pausedUntil ?? until, until)
        switch state {
        case .closed:
            state = .open(until: until, delay: Self.firstDelay, window: max(1, concurrency / 2))
        case .open(let earlier, let delay, let window):
            // Several requests that were under way are answered alike, and halve the window only once.
            state = .open(until: max(earlier, until), delay: delay, window: window)
        case .probing(_, let delay, let window):
            state = .open(until: until, delay: delay, window: max(1, window / 2))
        case .recovering(let window):
            state = .open(until: until, delay: Self.firstDelay, window: max(1, window / 2))
        }
        return actions(since: before)
    }

    /// A delivery can be attempted. While the circuit is open and its time has come, it is a probe. It has come too if it is further
    /// ahead than any pause: the clock that set it was wrong.
    package mutating func probeDue(at now: WallTime) -> [Action] {
        guard case .open(let until, let delay, let window) = state,
            until <= now || until > now + Self.longestPause
        else { return [standing] }
        state = .probing(until: until, delay: delay, window: window)
        lastProbe = lastProbe == .oldest ? .newest : .oldest
        return [.probe(lastProbe)]
    }

    /// Nothing waits that could be sent as the probe, or it could not be read.
    package mutating func probeMissed() -> [Action] {
        guard case .probing(let until, let delay, let window) = state else { return [standing] }
        state = .open(until: until, delay: delay, window: window)
        return [standing]
    }

    /// Another daemon stored its findings.
    ///
    /// - Parameters:
    ///   - isPause: the receiver asked for the pause after its last failure.
    ///   - lastSuccessAt: of all daemons. It ends the failures before it, as a success here does.
    package mutating func learned(
        _ others: Persisted,
        isPause: Bool = false,
        lastSuccessAt: WallTime? = nil,
        at now: WallTime
    ) -> [Action] {
        func lasting(_ failures: WallTime?...) -> WallTime? {
            failures.compactMap(\.self).filter { $0 > lastSuccessAt ?? WallTime(microseconds: .min) }.min()
        }
        func hasSucceeded(since time: WallTime) -> Bool { lastSuccessAt.map { $0 >= time } ?? false }
        let hasFailed = failingSince != nil
        failingSince = lasting(failingSince, lastFailedAt)
        let isPaused = pausedUntil.map { $0 > now } ?? false
        switch state {
        // The endpoint works again; the change that would be the probe here may be delivered.
        case .open where hasFailed && failingSince == nil && others.openUntil == nil && !isPaused:
            state = .recovering(window: 1)
        case .open(let until, _, _) where others.openUntil == nil && until <= now && hasSucceeded(since: until):
            state = .recovering(window: 1)
        case .closed, .recovering:
            guard let until = others.openUntil, let delay = others.probeDelay, until > now else { break }
            state = .open(until: until, delay: delay, window: 1)
            // Only a pause opens a circuit without a failure.
            if isPause || others.failingSince == nil { pausedUntil = until }
            failingSince = failingSince ?? lasting(others.failingSince)
        case .open, .probing:
            break
        }
        return [standing]
    }

    package mutating func operatorResumed() -> [Action] {
        let before = persisted
        (failingSince, lastFailedAt, pausedUntil) = (nil, nil, nil)
        state = .closed(failures: 0, changes: [])
        return actions(since: before)
    }

    // MARK: - Private parts

    private mutating func open(at now: WallTime, delay: Duration, window: Int = 1, _ jitter: Double) {
        let wait = delay * (1 + RetrySchedule.spread * jitter)
        state = .open(until: now + wait, delay: delay, window: window)
    }

    private func actions(since before: Persisted) -> [Action] {
        (before == persisted ? [] : [.persist]) + [standing]
    }
}
