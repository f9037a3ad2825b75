import Basics
import Effects
import Testing

@Suite("The circuit of an endpoint")
struct CircuitTests {
    private static let now = WallTime(seconds: 1_790_000_000)
    private static let later = now + .seconds(100)

    private enum Input: CaseIterable {
        case attemptSucceeded, attemptFailed, attemptAborted, throttled, probeDue, probeMissed, learned, operatorResumed

        func apply(to circuit: inout Circuit) -> [Circuit.Action] {
            switch self {
            case .attemptSucceeded: circuit.attemptSucceeded(at: now)
            case .attemptFailed: circuit.attemptFailed(change: 9, at: now, jitter: 0)
            case .attemptAborted: circuit.attemptAborted(at: now, jitter: 0)
            case .throttled: circuit.throttled(until: later)
            case .probeDue: circuit.probeDue(at: now)
            case .probeMissed: circuit.probeMissed()
            case .learned: circuit.learned(.init(openUntil: later, probeDelay: .seconds(40)), at: now)
            case .operatorResumed: circuit.operatorResumed()
            }
        }
    }

    private static func failing(_ count: Int, changes: Int, concurrency: Int = 8) -> Circuit {
        var circuit = Circuit(concurrency: concurrency)
        for failure in 0..<count {
            _ = circuit.attemptFailed(change: Int64(failure % changes), at: now, jitter: 0)
        }
        return circuit
    }

    /// Open, with a probe due at `now`.
    private static func open(delay: Int = 5) -> Circuit {
        Circuit(concurrency: 8, .init(failingSince: now, openUntil: now, probeDelay: .seconds(delay)))
    }

    private static func probing() -> Circuit {
        var circuit = open(delay: 20)
        _ = circuit.probeDue(at: now)
        return circuit
    }

    private static func recovering() -> Circuit {
        var circuit = probing()
        _ = circuit.attemptSucceeded(at: now)
        return circuit
    }

    /// The state and the action after each input to `circuit`.
    private func check(
        _ circuit: Circuit,
        _ expected: [(Input, Circuit.State, [Circuit.Action])],
        sourceLocation: SourceLocation = #_sourceLocation
    ) {
        #expect(expected.map(\.0) == Input.allCases, "every input", sourceLocation: sourceLocation)
        for (input, state, actions) in expected {
            var circuit = circuit
            #expect(input.apply(to: &circuit) == actions, "\(input)", sourceLocation: sourceLocation)
            #expect(circuit.state == state, "\(input)", sourceLocation: sourceLocation)
        }
    }

    private let fresh = Circuit.State.closed(failures: 0, changes: [])
    private let paused = Circuit.State.open(until: later, delay: .seconds(5), window: 4)

    @Test("Closed: each input.")
    func closed() {
        check(
            Self.failing(2, changes: 2),
            [
                (.attemptSucceeded, fresh, [.persist, .send(limit: 8)]),
                (.attemptFailed, .closed(failures: 3, changes: [0, 1, 9]), [.send(limit: 8)]),
                (.attemptAborted, .closed(failures: 2, changes: [0, 1]), [.send(limit: 8)]),
                (.throttled, paused, [.persist, .wait(until: Self.later)]),
                (.probeDue, .closed(failures: 2, changes: [0, 1]), [.send(limit: 8)]),
                (.probeMissed, .closed(failures: 2, changes: [0, 1]), [.send(limit: 8)]),
                (.learned, .open(until: Self.later, delay: .seconds(40), window: 1), [.wait(until: Self.later)]),
                (.operatorResumed, fresh, [.persist, .send(limit: 8)]),
            ]
        )
    }

    @Test("Open, with a probe due: each input.")
    func open() {
        let state = Circuit.State.open(until: Self.now, delay: .seconds(20), window: 1)
        check(
            Self.open(delay: 20),
            [
                (.attemptSucceeded, .recovering(window: 1), [.persist, .send(limit: 1)]),
                (.attemptFailed, state, [.wait(until: Self.now)]),
                (.attemptAborted, state, [.wait(until: Self.now)]),
                (
                    .throttled, .open(until: Self.later, delay: .seconds(20), window: 1),
                    [.persist, .wait(until: Self.later)]
                ),
                (.probeDue, .probing(until: Self.now, delay: .seconds(20), window: 1), [.probe(.oldest)]),
                (.probeMissed, state, [.wait(until: Self.now)]),
                (.learned, state, [.wait(until: Self.now)]),
                (.operatorResumed, fresh, [.persist, .send(limit: 8)]),
            ]
        )
    }

    @Test("Probing: each input.")
    func probing() {
        let state = Circuit.State.probing(until: Self.now, delay: .seconds(20), window: 1)
        let (same, doubled) = (Self.now + .seconds(20), Self.now + .seconds(40))
        check(
            Self.probing(),
            [
                (.attemptSucceeded, .recovering(window: 1), [.persist, .send(limit: 1)]),
                (
                    .attemptFailed, .open(until: doubled, delay: .seconds(40), window: 1),
                    [.persist, .wait(until: doubled)]
                ),
                (
                    .attemptAborted, .open(until: same, delay: .seconds(20), window: 1),
                    [.persist, .wait(until: same)]
                ),
                (
                    .throttled, .open(until: Self.later, delay: .seconds(20), window: 1),
                    [.persist, .wait(until: Self.later)]
                ),
                (.probeDue, state, [.send(limit: 0)]),
                (.probeMissed, .open(until: Self.now, delay: .seconds(20), window: 1), [.wait(until: Self.now)]),
                (.learned, state, [.send(limit: 0)]),
                (.operatorResumed, fresh, [.persist, .send(limit: 8)]),
            ]
        )
    }

    @Test("Recovering: each input.")
    func recovering() {
        let first = Self.now + .seconds(5)
        check(
            Self.recovering(),
            [
                (.attemptSucceeded, .recovering(window: 2), [.send(limit: 2)]),
                (.attemptFailed, .open(until: first, delay: .seconds(5), window: 1), [.persist, .wait(until: first)]),
                (.attemptAborted, .recovering(window: 1), [.send(limit: 1)]),
                (
                    .throttled, .open(until: Self.later, delay: .seconds(5), window: 1),
                    [.persist, .wait(until: Self.later)]
                ),
                (.probeDue, .recovering(window: 1), [.send(limit: 1)]),
                (.probeMissed, .recovering(window: 1), [.send(limit: 1)]),
                (.learned, .open(until: Self.later, delay: .seconds(40), window: 1), [.wait(until: Self.later)]),
                (.operatorResumed, fresh, [.send(limit: 8)]),
            ]
        )
    }

    @Test("It opens after five failures in a row that concern three changes, not after any number that concern two.")
    func opening() {
        #expect(!Self.failing(4, changes: 4).isOpen)
        #expect(Self.failing(5, changes: 3).isOpen)
        #expect(!Self.failing(100, changes: 2).isOpen)
        #expect(!Self.failing(100, changes: 1).isOpen)
        var interrupted = Self.failing(4, changes: 4)
        _ = interrupted.attemptSucceeded(at: Self.now)
        _ = interrupted.attemptFailed(change: 7, at: Self.now, jitter: 0)
        #expect(!interrupted.isOpen)
    }

    @Test("Probes come after 5, 10, 20 … 300 s, 20 % earlier or later, and alternate.", arguments: [-1.0, 0, 1])
    func probes(jitter: Double) {
        var circuit = Circuit(concurrency: 8)
        var now = Self.now
        for change in 0..<5 { _ = circuit.attemptFailed(change: Int64(change), at: now, jitter: jitter) }
        var kinds: [Circuit.Probe] = []
        for seconds in [5, 10, 20, 40, 80, 160, 300, 300] {
            let until = now + .seconds(seconds) * (1 + 0.2 * jitter)
            #expect(circuit.standing == .wait(until: until))
            #expect(circuit.probeDue(at: until - .microseconds(1)) == [.wait(until: until)])
            now = until
            guard case .probe(let kind)? = circuit.probeDue(at: now).last else {
                Issue.record("no probe at \(seconds)")
                return
            }
            kinds.append(kind)
            _ = circuit.attemptFailed(change: 1, at: now, jitter: jitter)
        }
        #expect(kinds == [.oldest, .newest, .oldest, .newest, .oldest, .newest, .oldest, .newest])
    }

    @Test("After a success, the number of requests doubles until it is the usual one.")
    func recovery() {
        var circuit = Self.probing()
        let limits = (0..<5).map { _ in circuit.attemptSucceeded(at: Self.now).last }
        #expect(limits == [1, 2, 4, 8, 8].map { .send(limit: $0) })
        #expect(circuit.state == fresh)
    }

    @Test("A pause that the receiver asked for halves the number of requests, and is no failure.")
    func throttling() {
        var circuit = Circuit(concurrency: 8)
        _ = circuit.throttled(until: Self.now)
        // Of another request that was under way.
        _ = circuit.throttled(until: Self.now - .seconds(1))
        #expect(circuit.failingSince == nil)
        _ = circuit.probeDue(at: Self.now)
        #expect(circuit.attemptSucceeded(at: Self.now).last == .send(limit: 4))
        #expect(circuit.attemptSucceeded(at: Self.now).last == .send(limit: 8))
    }

    @Test("The time of the first failure since the last success is kept over a restart.")
    func failingSince() {
        var circuit = Self.failing(5, changes: 5)
        let end = Self.now + .seconds(3_600)
        #expect(circuit.hasFailed(for: .seconds(3_600), at: end))
        #expect(!circuit.hasFailed(for: .seconds(3_601), at: end))
        #expect(!circuit.hasFailed(for: .zero, at: end))
        let persisted = circuit.persisted
        #expect(persisted == .init(failingSince: Self.now, openUntil: Self.now + .seconds(5), probeDelay: .seconds(5)))
        _ = circuit.attemptFailed(change: 9, at: end, jitter: 0)
        #expect(circuit.failingSince == Self.now)
        circuit = Circuit(concurrency: 8, persisted)
        #expect(circuit.isOpen)
        #expect(circuit.hasFailed(for: .seconds(3_600), at: end))
        _ = circuit.attemptSucceeded(at: Self.now)
        #expect(circuit.persisted == .init())
    }

    @Test("A probe that a wrong clock put further ahead than any pause is due.")
    func wrongClock() {
        var circuit = Self.failing(5, changes: 5)
        #expect(circuit.probeDue(at: Self.now - .seconds(3_000)) == [.wait(until: Self.now + .seconds(5))])
        #expect(circuit.probeDue(at: Self.now - .seconds(6 * 3_600)) == [.probe(.oldest)])
    }

    @Test("A request for no further attempt of a change is neither a success nor a failure.")
    func aborted() {
        var circuit = Self.failing(4, changes: 4)
        for second in 1...10 { _ = circuit.attemptAborted(at: Self.now + .seconds(second), jitter: 0) }
        #expect(circuit.failingSince == Self.now)
        #expect(circuit.state == .closed(failures: 4, changes: [0, 1, 2, 3]))
        _ = circuit.attemptFailed(change: 4, at: Self.now, jitter: 0)
        #expect(circuit.isOpen)
        var fine = Circuit(concurrency: 8)
        _ = fine.attemptAborted(at: Self.now, jitter: 0)
        #expect(fine == Circuit(concurrency: 8))
    }

    @Test("Another daemon's success ends the failures before it, also while the circuit is open, and none after it.")
    func successElsewhere() {
        let (success, end) = (Self.now + .seconds(10), Self.now + .seconds(3_600))
        for failures in [1, 5] {
            var idle = Self.failing(failures, changes: 5)
            _ = idle.learned(.init(), lastSuccessAt: Self.now - .seconds(1), at: end)
            #expect(idle.failingSince == Self.now)
            let state = failures == 5 ? Circuit.State.recovering(window: 1) : idle.state
            _ = idle.learned(.init(), lastSuccessAt: success, at: end)
            #expect(idle.failingSince == nil && idle.state == state)
            _ = idle.attemptFailed(change: 9, at: end, jitter: 0)
            #expect(idle.failingSince == end && idle.lastFailedAt == end)
            #expect(!idle.hasFailed(for: .seconds(3_600), at: end))
        }
        // It fails again before it learns of the success.
        var late = Self.failing(1, changes: 1)
        _ = late.attemptFailed(change: 2, at: end, jitter: 0)
        #expect(late.failingSince == Self.now)
        _ = late.learned(.init(), lastSuccessAt: success, at: end)
        #expect(late.failingSince == end)
    }

    @Test("Another daemon's success does not end a pause that the receiver asked for.")
    func pauseAndSuccessElsewhere() {
        var circuit = Self.failing(1, changes: 1)
        _ = circuit.throttled(until: Self.later)
        _ = circuit.learned(.init(), lastSuccessAt: Self.now + .seconds(10), at: Self.now + .seconds(11))
        #expect(circuit.failingSince == nil && circuit.standing == .wait(until: Self.later))
        _ = circuit.learned(.init(), lastSuccessAt: Self.later, at: Self.later)
        #expect(circuit.state == .recovering(window: 1))
    }

    @Test("A request that was under way when the receiver asked for a pause ends failures, but not the pause.")
    func lateSuccess() {
        var circuit = Self.failing(1, changes: 1)
        _ = circuit.throttled(until: Self.later)
        #expect(circuit.attemptSucceeded(at: Self.now) == [.persist, .wait(until: Self.later)])
        #expect(circuit.attemptSucceeded(at: Self.now) == [.wait(until: Self.later)])
        #expect(circuit.failingSince == nil && circuit.lastFailedAt == nil)
        #expect(circuit.probeDue(at: Self.later) == [.probe(.oldest)])
        #expect(circuit.attemptSucceeded(at: Self.later) == [.persist, .send(limit: 4)])

        // The pause was asked of another daemon.
        var other = Circuit(concurrency: 8)
        _ = other.learned(.init(openUntil: Self.later, probeDelay: .seconds(5)), at: Self.now)
        #expect(other.attemptSucceeded(at: Self.now) == [.wait(until: Self.later)])
        // Also after failures.
        let failures = Circuit.Persisted(failingSince: Self.now, openUntil: Self.later, probeDelay: .seconds(5))
        var another = Circuit(concurrency: 8)
        _ = another.learned(failures, isPause: true, at: Self.now)
        #expect(another.attemptSucceeded(at: Self.now).last == .wait(until: Self.later))
        // Its requests failed.
        var failing = Circuit(concurrency: 8)
        _ = failing.learned(failures, at: Self.now)
        #expect(failing.attemptSucceeded(at: Self.now).last == .send(limit: 1))
    }

    @Test("A circuit that another daemon opened is closed by that daemon's success after it.")
    func pauseOfAnother() {
        var circuit = Circuit(concurrency: 8)
        _ = circuit.learned(.init(openUntil: Self.later, probeDelay: .seconds(5)), at: Self.now)
        #expect(circuit.isOpen && circuit.failingSince == nil)
        let end = Self.later + .seconds(10)
        _ = circuit.learned(.init(), lastSuccessAt: Self.later - .seconds(1), at: end)
        #expect(circuit.isOpen)
        _ = circuit.learned(.init(), lastSuccessAt: Self.later + .seconds(1), at: end)
        #expect(circuit.state == .recovering(window: 1))
    }

    @Test("The failures of another daemon are learned with its open circuit, unless a success has ended them.")
    func failuresElsewhere() {
        let others = Circuit.Persisted(failingSince: Self.now, openUntil: Self.later, probeDelay: .seconds(5))
        for (success, expected) in [(nil, Self.now), (Self.now - .seconds(1), Self.now), (Self.now, nil)]
            as [(WallTime?, WallTime?)]
        {
            var circuit = Circuit(concurrency: 8)
            _ = circuit.learned(others, lastSuccessAt: success, at: Self.now)
            #expect(circuit.isOpen && circuit.failingSince == expected)
        }
    }
}
