import Testing

@testable import Ingest

@Suite("The state of the writer")
struct WriterStateTests {
    private final class Connection: Sendable {}
    private typealias State = WriterState<Connection>

    private static let first = Connection()
    private static let second = Connection()

    /// A way to reach each state.
    enum Situation: String, CaseIterable, CustomTestStringConvertible {
        case starting, startingWithSpool, startingWithFailingSpool
        case storing, storingWithSpool, storingWithFailingSpool
        case away, awayWithSpool, awayWithFailingSpool, awayProven
        case closing, closingOnConnection, closingWithSpool, closingWithFailingSpool

        var testDescription: String { rawValue }
    }

    private static func state(_ situation: Situation) -> State {
        var state = State(hasSpool: situation.rawValue.contains("Spool"))
        switch situation {
        case .starting, .startingWithSpool, .startingWithFailingSpool: break
        case .storing, .storingWithSpool, .storingWithFailingSpool, .closingOnConnection:
            _ = state.connected(first, hasStored: false)
        case .away, .awayWithSpool, .awayWithFailingSpool: state.connectionFailed()
        case .awayProven:
            _ = state.connected(first, hasStored: true)
            _ = state.connectionLost(first)
        case .closing, .closingWithSpool, .closingWithFailingSpool: break
        }
        if situation.rawValue.contains("Failing") { _ = state.spoolFailed(cause: "the disk is full") }
        if situation.rawValue.hasPrefix("closing") { state.closed() }
        return state
    }

    /// What a state answers to all questions.
    private struct View: Equatable {
        var admission: State.Admission
        var storage: Storage
        var step: State.Step
        var hasConnection = false
        var isSpoolFailing = false
    }

    private static func view(_ state: State) -> View {
        View(
            admission: state.admission,
            storage: state.storage,
            step: state.nextStep,
            hasConnection: state.connection != nil,
            isSpoolFailing: state.isSpoolFailing
        )
    }

    private static let unreached = Storage.nowhere(cause: "PostgreSQL was not reached yet")
    private static let refused = Storage.nowhere(cause: "PostgreSQL can't be written to")
    private static let full = Storage.nowhere(cause: "the disk is full")

    /// The expected answers.
    private static func expected(_ situation: Situation) -> View {
        let now = State.Step.connect(afterPause: false)
        let later = State.Step.connect(afterPause: true)
        return switch situation {
        case .starting, .startingWithSpool: View(admission: .paused, storage: unreached, step: now)
        case .startingWithFailingSpool:
            View(admission: .paused, storage: unreached, step: now, isSpoolFailing: true)
        case .storing, .storingWithSpool:
            View(admission: .open, storage: .database, step: .maintain, hasConnection: true)
        case .storingWithFailingSpool:
            View(admission: .open, storage: .database, step: .maintain, hasConnection: true, isSpoolFailing: true)
        case .away: View(admission: .paused, storage: refused, step: later)
        case .awayProven: View(admission: .paused, storage: refused, step: now)
        case .awayWithSpool: View(admission: .open, storage: .spool, step: later)
        case .awayWithFailingSpool: View(admission: .open, storage: full, step: later, isSpoolFailing: true)
        case .closing: View(admission: .closed, storage: refused, step: .end)
        case .closingOnConnection:
            View(admission: .closed, storage: .database, step: .end, hasConnection: true)
        case .closingWithSpool: View(admission: .closed, storage: .spool, step: .end)
        case .closingWithFailingSpool: View(admission: .closed, storage: full, step: .end, isSpoolFailing: true)
        }
    }

    @Test(
        "Each state determines where notifications go and the next step of the writer.",
        arguments: Situation.allCases
    )
    func questions(_ situation: Situation) {
        #expect(Self.view(Self.state(situation)) == Self.expected(situation))
    }

    @Test("A new connection is used unless the process is ending.", arguments: Situation.allCases)
    func connected(_ situation: Situation) {
        var state = Self.state(situation)
        let isClosing = state.admission == .closed
        #expect(state.connected(Self.second, hasStored: true) == (isClosing ? .discard : .use))
        if isClosing {
            #expect(Self.view(state) == Self.expected(situation))
        } else {
            #expect(state.connection === Self.second && state.hasStored)
            #expect(state.storage == .database && state.admission == .open && state.nextStep == .maintain)
        }
        #expect(state.isSpoolFailing == Self.expected(situation).isSpoolFailing)
    }

    @Test("After a failed attempt notifications wait in the spool if there is one.", arguments: Situation.allCases)
    func connectionFailed(_ situation: Situation) {
        var state = Self.state(situation)
        state.connectionFailed()
        switch situation {
        case .starting, .away, .awayProven: #expect(Self.view(state) == Self.expected(.away))
        case .startingWithSpool, .awayWithSpool: #expect(Self.view(state) == Self.expected(.awayWithSpool))
        case .startingWithFailingSpool, .awayWithFailingSpool:
            #expect(Self.view(state) == Self.expected(.awayWithFailingSpool))
        case .storing, .storingWithSpool, .storingWithFailingSpool, .closing, .closingOnConnection, .closingWithSpool,
            .closingWithFailingSpool:
            #expect(Self.view(state) == Self.expected(situation))
        }
    }

    @Test("A start that takes too long opens the spool.", arguments: Situation.allCases)
    func startDelayed(_ situation: Situation) {
        var state = Self.state(situation)
        state.startDelayed()
        switch situation {
        case .startingWithSpool: #expect(Self.view(state) == Self.expected(.awayWithSpool))
        case .startingWithFailingSpool: #expect(Self.view(state) == Self.expected(.awayWithFailingSpool))
        case .starting, .storing, .storingWithSpool, .storingWithFailingSpool, .away, .awayWithSpool,
            .awayWithFailingSpool, .awayProven, .closing, .closingOnConnection, .closingWithSpool,
            .closingWithFailingSpool:
            #expect(Self.view(state) == Self.expected(situation))
        }
    }

    @Test("Only the loss of the connection in use is reported, and only once.", arguments: Situation.allCases)
    func connectionLost(_ situation: Situation) {
        var other = Self.state(situation)
        var used = Self.state(situation)
        let otherAction = other.connectionLost(Self.second)
        let usedAction = used.connectionLost(Self.first)
        #expect(used.connectionLost(Self.first) == .none)
        #expect(Self.view(other) == Self.expected(situation))
        switch situation {
        case .storing, .storingWithSpool, .storingWithFailingSpool, .closingOnConnection:
            #expect(otherAction == .none && usedAction == .report)
        case .starting, .startingWithSpool, .startingWithFailingSpool, .away, .awayWithSpool, .awayWithFailingSpool,
            .awayProven, .closing, .closingWithSpool, .closingWithFailingSpool:
            #expect(otherAction == .none && usedAction == .none)
        }
        switch situation {
        case .storing: #expect(Self.view(used) == Self.expected(.away))
        case .storingWithSpool: #expect(Self.view(used) == Self.expected(.awayWithSpool))
        case .storingWithFailingSpool: #expect(Self.view(used) == Self.expected(.awayWithFailingSpool))
        case .closingOnConnection: #expect(Self.view(used) == Self.expected(.closing))
        case .starting, .startingWithSpool, .startingWithFailingSpool, .away, .awayWithSpool, .awayWithFailingSpool,
            .awayProven, .closing, .closingWithSpool, .closingWithFailingSpool:
            #expect(Self.view(used) == Self.expected(situation))
        }
    }

    @Test(
        "Only the connection in use is replaced, and the replacement has stored nothing yet.",
        arguments: Situation.allCases
    )
    func connectionReplaced(_ situation: Situation) {
        var state = Self.state(situation)
        state.batchStored(on: Self.first)
        let isUsed = state.connection != nil
        state.connectionReplaced(Self.second, by: Self.second)
        #expect(state.hasStored == isUsed)
        state.connectionReplaced(Self.first, by: Self.second)
        #expect(!state.hasStored)
        #expect((state.connection === Self.second) == isUsed)
        #expect(Self.view(state) == Self.expected(situation))
    }

    @Test("A connection that stored something is replaced without a pause.", arguments: Situation.allCases)
    func batchStored(_ situation: Situation) {
        var state = Self.state(situation)
        state.batchStored(on: Self.second)
        #expect(!state.hasStored)
        state.batchStored(on: Self.first)
        #expect(Self.view(state) == Self.expected(situation))
        guard situation == .storing || situation == .storingWithSpool else { return }
        #expect(state.hasStored)
        _ = state.connectionLost(Self.first)
        #expect(state.nextStep == .connect(afterPause: false))
        state.connectionFailed()
        #expect(state.nextStep == .connect(afterPause: true))
    }

    @Test("The server is the cause if it stores none of several, or twice none of one.", arguments: Situation.allCases)
    func notificationsRefused(_ situation: Situation) {
        let isUsed = Self.expected(situation).hasConnection
        func actions(_ results: [(stored: Int, count: Int)]) -> [State.RefusedAction] {
            var state = Self.state(situation)
            let actions = results.map { state.notificationsRefused(on: Self.first, stored: $0.stored, of: $0.count) }
            #expect(Self.view(state) == Self.expected(situation))
            return actions
        }
        let givenUp = isUsed ? State.RefusedAction.giveUpConnection : .keepConnection
        #expect(actions([(0, 20)]) == [givenUp])
        #expect(actions([(1, 20), (19, 20)]) == [.keepConnection, .keepConnection])
        #expect(actions([(0, 1), (0, 1)]) == [.keepConnection, givenUp])
        #expect(actions([(0, 1), (1, 2), (0, 1)]) == [.keepConnection, .keepConnection, .keepConnection])
        var state = Self.state(situation)
        _ = state.notificationsRefused(on: Self.first, stored: 0, of: 1)
        state.batchStored(on: Self.first)
        #expect(state.notificationsRefused(on: Self.first, stored: 0, of: 1) == .keepConnection)
    }

    @Test("A connection is checked if it was not used since the last check.", arguments: Situation.allCases)
    func idleCheckDue(_ situation: Situation) {
        func checks(_ state: inout State) -> Bool {
            switch state.idleCheckDue() {
            case .check(let connection): connection === Self.first
            case .none: false
            }
        }
        var state = Self.state(situation)
        let isUsed = state.connection != nil
        #expect(checks(&state) == isUsed)
        state.batchStored(on: Self.first)
        #expect(!checks(&state))
        #expect(checks(&state) == isUsed)
        #expect(Self.view(state) == Self.expected(situation))
    }

    @Test(
        "A failing spool changes where notifications go only while PostgreSQL is away.",
        arguments: Situation.allCases
    )
    func spoolFailedAndSucceeded(_ situation: Situation) {
        var state = Self.state(situation)
        let wasFailing = state.isSpoolFailing
        let hasSpool = situation.rawValue.contains("Spool")
        #expect(state.spoolSucceeded() == wasFailing)
        #expect(!state.isSpoolFailing)
        #expect(state.spoolSucceeded() == false)
        #expect(state.spoolFailed(cause: "the disk is full") == (state.connection == nil))
        #expect(state.isSpoolFailing == hasSpool)
        switch situation {
        case .awayWithSpool: #expect(Self.view(state) == Self.expected(.awayWithFailingSpool))
        case .closingWithSpool: #expect(Self.view(state) == Self.expected(.closingWithFailingSpool))
        case .starting, .startingWithSpool, .startingWithFailingSpool, .storing, .storingWithSpool,
            .storingWithFailingSpool, .away, .awayWithFailingSpool, .awayProven, .closing, .closingOnConnection,
            .closingWithFailingSpool:
            #expect(state.nextStep == Self.expected(situation).step)
        }
        #expect(state.spoolSucceeded() == hasSpool)
    }

    @Test(
        "After the end nothing is accepted, and the connection is kept for waiting submissions.",
        arguments: Situation.allCases
    )
    func closed(_ situation: Situation) {
        var state = Self.state(situation)
        let before = Self.expected(situation)
        state.closed()
        #expect(state.admission == .closed && state.nextStep == .end)
        #expect((state.connection != nil) == before.hasConnection)
        #expect(state.isSpoolFailing == before.isSpoolFailing)
        let after = Self.view(state)
        state.closed()
        #expect(Self.view(state) == after)
    }
}
