/// What a pool gives a caller.
enum PoolGrant<Connection: Sendable>: Sendable {
    /// The caller owns this connection until it gives it back.
    case connection(Connection)
    /// The caller may open one connection, and gives back either that or the permission.
    case permission
}

/// The connections of a pool, their users and the waiting callers. Decides only; the pool connects and waits.
struct PoolState<Connection: Sendable, Waiter: Sendable>: Sendable {
    enum WantAction: Sendable {
        case grant(PoolGrant<Connection>)
        case wait
        case refuse
    }

    /// What to do after a connection or permission was given back.
    enum ReturnAction: Sendable {
        case resume(Waiter, PoolGrant<Connection>)
        case close(Connection)
        case nothing
    }

    private let maximum: Int
    private var isClosed = false
    private var idle: [Connection] = []
    /// Open connections, plus permissions to open one.
    private var taken = 0
    private var waiters: [(id: Int, waiter: Waiter)] = []
    private var lastWaiterID = 0

    init(maximum: Int) {
        self.maximum = maximum
    }

    /// A caller wants a connection. It gets the one used last, whose caches are the warmest.
    mutating func connectionWanted() -> WantAction {
        if isClosed { return .refuse }
        if let connection = idle.popLast() { return .grant(.connection(connection)) }
        guard taken < maximum else { return .wait }
        taken += 1
        return .grant(.permission)
    }

    var hasWaiters: Bool { !waiters.isEmpty }

    mutating func nextWaiterID() -> Int {
        lastWaiterID += 1
        return lastWaiterID
    }

    mutating func waiterArrived(_ id: Int, _ waiter: Waiter) {
        waiters.append((id, waiter))
    }

    /// A caller stopped waiting; nil if it was served before.
    mutating func waiterLeft(_ id: Int) -> Waiter? {
        guard let index = waiters.firstIndex(where: { $0.id == id }) else { return nil }
        return waiters.remove(at: index).waiter
    }

    /// A working connection was given back.
    mutating func connectionReturned(_ connection: Connection) -> ReturnAction {
        // A closed pool has no waiters.
        if let next = nextWaiter() { return .resume(next, .connection(connection)) }
        guard isClosed else {
            idle.append(connection)
            return .nothing
        }
        taken -= 1
        return .close(connection)
    }

    /// A connection broke, or could not be opened, so another may be opened in its place.
    mutating func connectionLost() -> ReturnAction {
        // A closed pool has no waiters.
        guard let next = nextWaiter() else {
            taken -= 1
            return .nothing
        }
        return .resume(next, .permission)
    }

    /// The pool was closed. The caller closes the idle connections and refuses the waiters.
    mutating func poolClosed() -> (idle: [Connection], waiters: [Waiter]) {
        isClosed = true
        taken -= idle.count
        defer {
            idle = []
            waiters = []
        }
        return (idle, waiters.map(\.waiter))
    }

    private mutating func nextWaiter() -> Waiter? {
        waiters.isEmpty ? nil : waiters.removeFirst().waiter
    }
}
