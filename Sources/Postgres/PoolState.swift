/// What a pool gives a caller.
enum PoolGrant<Connection: Sendable>: Sendable {
    /// This connection is the caller's until it is given back.
    case connection(Connection)
    /// The caller may open one connection, and gives back that or the permission.
    case permission
}

/// Which connections a pool has, who uses them and who waits; decides, and leaves connecting and waiting to the pool.
struct PoolState<Connection: Sendable, Waiter: Sendable>: Sendable {
    /// What to do for a caller that wants a connection.
    enum WantAction: Sendable {
        case grant(PoolGrant<Connection>)
        case wait
        case refuse
    }

    /// What to do after something was given back.
    enum ReturnAction: Sendable {
        case resume(Waiter, PoolGrant<Connection>)
        case close(Connection)
        case nothing
    }

    private enum Phase {
        case open
        case closed
    }

    private let maximum: Int
    private var phase = Phase.open
    private var idle: [Connection] = []
    /// Connections there are, and permissions to open one.
    private var taken = 0
    private var waiters: [(id: Int, waiter: Waiter)] = []
    private var lastWaiterID = 0

    /// A pool of no connections yet.
    init(maximum: Int) {
        self.maximum = maximum
    }

    /// A caller wants a connection; the one used last comes first, since its caches are the warmest.
    mutating func connectionWanted() -> WantAction {
        switch phase {
        case .closed:
            return .refuse
        case .open:
            if let connection = idle.popLast() { return .grant(.connection(connection)) }
            guard taken < maximum else { return .wait }
            taken += 1
            return .grant(.permission)
        }
    }

    /// A new number for a caller that may have to wait.
    mutating func nextWaiterID() -> Int {
        lastWaiterID += 1
        return lastWaiterID
    }

    /// A caller waits, behind the others.
    mutating func waiterArrived(_ id: Int, _ waiter: Waiter) {
        waiters.append((id, waiter))
    }

    /// A caller gave up; nil if it has been served already.
    mutating func waiterLeft(_ id: Int) -> Waiter? {
        guard let index = waiters.firstIndex(where: { $0.id == id }) else { return nil }
        return waiters.remove(at: index).waiter
    }

    /// A connection that works was given back.
    mutating func connectionReturned(_ connection: Connection) -> ReturnAction {
        switch phase {
        case .closed:
            taken -= 1
            return .close(connection)
        case .open:
            guard let next = nextWaiter() else {
                idle.append(connection)
                return .nothing
            }
            return .resume(next, .connection(connection))
        }
    }

    /// A connection broke, or could not be opened: another may be opened in its place.
    mutating func connectionLost() -> ReturnAction {
        switch phase {
        case .closed:
            taken -= 1
            return .nothing
        case .open:
            guard let next = nextWaiter() else {
                taken -= 1
                return .nothing
            }
            return .resume(next, .permission)
        }
    }

    /// The pool was closed: its idle connections are to be closed and its waiters refused.
    mutating func poolClosed() -> (idle: [Connection], waiters: [Waiter]) {
        phase = .closed
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
