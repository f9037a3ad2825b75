/// Where notifications are made durable at present.
package enum Storage: Sendable, Equatable {
    case database
    /// The spool, until PostgreSQL is back.
    case spool
    /// Requests are answered 503.
    case nowhere(cause: String)
}

/// Decides where notifications go: to the database, to the spool, or back to the client with 503.
///
/// A state machine without I/O: inputs are methods in the past tense, the caller performs the action that they return. It
/// is the only place that holds this decision; the queue, the writer and `/readyz` ask it.
struct WriterState<Connection: AnyObject & Sendable>: Sendable {
    /// The spool as far as it was tried.
    private enum Spool {
        case none
        case writable
        case failing(cause: String)
    }

    private struct Use {
        let connection: Connection
        /// It stored something. A connection that did not proves nothing about the server.
        var hasStored: Bool
        /// Nothing of the last batch could be stored, although the connection survived.
        var wasBarren = false
        /// It was used since the last check of an idle connection.
        var isActive = false
    }

    private enum State {
        /// The first connection attempt has not ended.
        case starting
        case storing(Use)
        /// PostgreSQL can't be written to. `isProven`: the last connection had stored something.
        case away(isProven: Bool)
        /// The process is ending: what was accepted is stored, on the connection if there is one.
        case closing(Use?)
    }

    private var state = State.starting
    private var spool: Spool

    init(hasSpool: Bool) {
        spool = hasSpool ? .writable : .none
    }

    // MARK: - Questions

    enum Admission: Equatable {
        case open
        /// Nothing can be stored at present.
        case paused
        case closed
    }

    var admission: Admission {
        switch (state, spool) {
        case (.starting, _), (.away, .none): .paused
        // A failing spool is tried again with each batch.
        case (.storing, _), (.away, .writable), (.away, .failing): .open
        case (.closing, _): .closed
        }
    }

    var storage: Storage {
        switch (state, spool) {
        case (.starting, _): .nowhere(cause: "PostgreSQL was not reached yet")
        case (.storing, _), (.closing(.some), _): .database
        case (.away, .none), (.closing(nil), .none): .nowhere(cause: "PostgreSQL can't be written to")
        case (.away, .writable), (.closing(nil), .writable): .spool
        case (.away, .failing(let cause)), (.closing(nil), .failing(let cause)): .nowhere(cause: cause)
        }
    }

    /// The connection that the next batch is stored on; nil: the spool.
    var connection: Connection? { use?.connection }

    var hasStored: Bool { use?.hasStored ?? false }

    /// True before the first attempt to connect has ended.
    var isStarting: Bool {
        if case .starting = state { true } else { false }
    }

    var isSpoolFailing: Bool {
        if case .failing = spool { true } else { false }
    }

    enum Step: Equatable {
        case connect(afterPause: Bool)
        /// Stores what is in the spool, and checks the spool and an idle connection from time to time.
        case maintain
        case end
    }

    var nextStep: Step {
        switch state {
        case .starting: .connect(afterPause: false)
        case .away(let isProven): .connect(afterPause: !isProven)
        case .storing: .maintain
        case .closing: .end
        }
    }

    // MARK: - Inputs

    enum ConnectedAction: Equatable {
        case use
        /// Close it: the process is ending.
        case discard
    }

    /// - Parameter hasStored: the connection stored something from the spool.
    mutating func connected(_ connection: Connection, hasStored: Bool) -> ConnectedAction {
        switch state {
        case .starting, .away, .storing:
            state = .storing(Use(connection: connection, hasStored: hasStored))
            return .use
        case .closing:
            return .discard
        }
    }

    mutating func connectionFailed() {
        switch state {
        case .starting, .away: state = .away(isProven: false)
        case .storing, .closing: break
        }
    }

    /// The first connection attempt takes longer than a request may wait.
    mutating func startDelayed() {
        switch (state, spool) {
        case (.starting, .writable), (.starting, .failing): state = .away(isProven: false)
        // Without a spool nothing can be accepted.
        case (.starting, .none), (.storing, _), (.away, _), (.closing, _): break
        }
    }

    /// A connection that broke was replaced immediately by another one.
    mutating func connectionReplaced(_ old: Connection, by new: Connection) {
        updateUse(of: old) { $0 = Use(connection: new, hasStored: false) }
    }

    enum LostAction: Equatable {
        case report
        /// It is not in use: its loss is reported already, or another one replaced it.
        case none
    }

    mutating func connectionLost(_ connection: Connection) -> LostAction {
        switch state {
        case .storing(let use) where use.connection === connection:
            state = .away(isProven: use.hasStored)
            return .report
        case .closing(.some(let use)) where use.connection === connection:
            state = .closing(nil)
            return .report
        case .starting, .storing, .away, .closing: return .none
        }
    }

    mutating func batchStored(on connection: Connection) {
        updateUse(of: connection) { use in
            use.hasStored = true
            use.wasBarren = false
            use.isActive = true
        }
    }

    enum RefusedAction: Equatable {
        case keepConnection
        case giveUpConnection
    }

    /// PostgreSQL refused some of a batch's notifications, each of them alone. If it stored none of several, or for the second
    /// time none, the cause is the server.
    mutating func notificationsRefused(on connection: Connection, stored: Int, of count: Int) -> RefusedAction {
        var action = RefusedAction.keepConnection
        updateUse(of: connection) { use in
            let isBarren = stored == 0
            if isBarren, count > 1 || use.wasBarren { action = .giveUpConnection }
            use.wasBarren = isBarren
        }
        return action
    }

    enum IdleAction {
        case check(Connection)
        case none
    }

    /// The time came to check a connection that was not used since the last time.
    mutating func idleCheckDue() -> IdleAction {
        guard let use else { return .none }
        guard use.isActive else { return .check(use.connection) }
        updateUse(of: use.connection) { $0.isActive = false }
        return .none
    }

    /// Returns whether notifications are answered 503 now.
    mutating func spoolFailed(cause: String) -> Bool {
        switch spool {
        case .none: break
        case .writable, .failing: spool = .failing(cause: cause)
        }
        return connection == nil
    }

    /// Returns whether the spool could not be written to before.
    mutating func spoolSucceeded() -> Bool {
        let wasFailing = isSpoolFailing
        if wasFailing { spool = .writable }
        return wasFailing
    }

    mutating func closed() {
        switch state {
        case .starting, .away: state = .closing(nil)
        case .storing(let use): state = .closing(use)
        case .closing: break
        }
    }

    // MARK: - Private parts

    private var use: Use? {
        switch state {
        case .starting, .away: nil
        case .storing(let use): use
        case .closing(let use): use
        }
    }

    private mutating func updateUse(of connection: Connection, _ change: (inout Use) -> Void) {
        switch state {
        case .storing(var use) where use.connection === connection:
            change(&use)
            state = .storing(use)
        case .closing(.some(var use)) where use.connection === connection:
            change(&use)
            state = .closing(use)
        case .starting, .storing, .away, .closing: break
        }
    }
}
