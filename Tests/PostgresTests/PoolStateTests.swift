import Testing

@testable import Postgres

@Suite("Pool state")
struct PoolStateTests {
    private typealias State = PoolState<String, Int>

    @Test("Connections are opened one by one up to the limit, and then callers wait.")
    func wanting() {
        var state = State(maximum: 2)
        #expect(state.connectionWanted().isPermission)
        #expect(state.connectionWanted().isPermission)
        #expect(state.connectionWanted().isWait)
    }

    @Test("A returned connection goes to the longest waiting caller, or else becomes idle.")
    func returning() {
        var state = State(maximum: 1)
        _ = state.connectionWanted()
        state.waiterArrived(1, 10)
        state.waiterArrived(2, 20)
        guard case .resume(10, .connection("a")) = state.connectionReturned("a") else { return fail() }
        guard case .resume(20, .connection("a")) = state.connectionReturned("a") else { return fail() }
        guard case .nothing = state.connectionReturned("a") else { return fail() }
        guard case .grant(.connection("a")) = state.connectionWanted() else { return fail() }
    }

    @Test("The connection used last is used next.")
    func order() {
        var state = State(maximum: 2)
        _ = state.connectionWanted()
        _ = state.connectionWanted()
        _ = state.connectionReturned("a")
        _ = state.connectionReturned("b")
        guard case .grant(.connection("b")) = state.connectionWanted() else { return fail() }
    }

    @Test("After a connection is lost, another may be opened, first by a waiting caller.")
    func losing() {
        var state = State(maximum: 1)
        _ = state.connectionWanted()
        state.waiterArrived(1, 10)
        guard case .resume(10, .permission) = state.connectionLost() else { return fail() }
        guard case .nothing = state.connectionLost() else { return fail() }
        #expect(state.connectionWanted().isPermission)
    }

    @Test("A caller that stopped waiting gets no connection.")
    func leaving() {
        var state = State(maximum: 1)
        _ = state.connectionWanted()
        state.waiterArrived(1, 10)
        #expect(state.waiterLeft(1) == 10)
        #expect(state.waiterLeft(1) == nil)
        guard case .nothing = state.connectionReturned("a") else { return fail() }
    }

    @Test("A closed pool returns its idle connections and refuses callers.")
    func closing() {
        var state = State(maximum: 2)
        _ = state.connectionWanted()
        _ = state.connectionWanted()
        _ = state.connectionReturned("a")
        state.waiterArrived(1, 10)
        let (idle, waiters) = state.poolClosed()
        #expect(idle == ["a"])
        #expect(waiters == [10])
        guard case .refuse = state.connectionWanted() else { return fail() }
        guard case .close("b") = state.connectionReturned("b") else { return fail() }
        guard case .nothing = state.connectionLost() else { return fail() }
    }

    private func fail() {
        Issue.record("unexpected action")
    }
}

extension PoolState.WantAction {
    fileprivate var isPermission: Bool {
        if case .grant(.permission) = self { return true }
        return false
    }

    fileprivate var isWait: Bool {
        if case .wait = self { return true }
        return false
    }
}
