import AccountStore
import ArgumentParser
import Basics
import Effects
import Postgres
import Terminal

struct EndpointsPauseCommand: EndpointChangeCommand {
    static let configuration = CommandConfiguration(
        commandName: "pause",
        abstract: "Stop delivering to an endpoint. Its changes wait.",
        usage: "siwad endpoints pause <name> --note <text> [<options>]",
        discussion: """
            Attempts under way end. Nothing is lost, however long the pause is.

            Example:
              siwad endpoints pause shop --note 'maintenance, ticket 4711'
            """
    )
    static let verb = "pause"

    @OptionGroup var endpoint: EndpointNameOptions
    @OptionGroup var audit: AuditOptions
    @OptionGroup var database: DatabaseOptions

    func run(_ invocation: Invocation) async throws {
        try await change(invocation) { endpoint, session in
            guard endpoint.status != .disabled else {
                throw CommandFailure(.failed, "siwad disabled \(endpoint.name): nothing is delivered to it already")
            }
            try Endpoints.pause(endpoint.id, in: session)
        }
        invocation.console.print("\(endpoint.name) is paused; its changes wait")
    }
}

struct EndpointsResumeCommand: EndpointChangeCommand {
    static let configuration = CommandConfiguration(
        commandName: "resume",
        abstract: "Deliver to an endpoint again, after a pause, after siwad disabled it, or while its circuit is open.",
        usage: "siwad endpoints resume <name> --note <text> [<options>]",
        discussion: """
            What was never attempted is delivered in its order, without waiting for the next probe. What failed keeps \
            the time of its next attempt: to deliver it too, first run siwad deliveries retry --status retry. --from-end \
            discards both first.

            Example:
              siwad endpoints resume shop --note 'maintenance is over'
            """
    )
    static let verb = "resume"

    @OptionGroup var endpoint: EndpointNameOptions
    @Flag(help: "Discard the changes that wait.")
    var fromEnd = false
    @OptionGroup var audit: AuditOptions
    @OptionGroup var database: DatabaseOptions

    func run(_ invocation: Invocation) async throws {
        let (command, name) = (self, endpoint.name)
        try await Services.runInterruptibly {
            if command.fromEnd {
                let discarded = try await command.discardWaiting(invocation, " --from-end")
                invocation.console.note("\(counted(discarded, "change")) discarded")
            }
            try await command.change(invocation) { endpoint, session in
                try Endpoints.resume(endpoint.id, in: session)
            }
            invocation.console.print("\(name) is enabled")
        }
    }
}

extension EndpointChangeCommand {
    /// Discards the deliveries that wait, in batches. A run leaves alone what a daemon has locked at that time, so it is
    /// repeated for up to 10 seconds. Changes that are published in that time are kept.
    ///
    /// - Returns: the number of deliveries that were discarded.
    /// - Throws: `CommandFailure` if some are left.
    func discardWaiting(_ invocation: Invocation, _ option: String) async throws -> Int {
        let (console, action, options) = (invocation.console, try action(invocation, option), endpoint)
        return try await invocation.withDatabase { pool in
            var filter = DeliveryFilter()
            filter.endpoint = options.name
            filter.statuses = [.pending, .retry]
            filter.lastPosition = try await pool.change { session in
                _ = try options.find(in: session)
                return try ChangeLog.end(in: session)
            }
            let run = DeliveryRun(.discard, filter, as: action)
            var progress = ProgressLine(title: "discarding", on: console)
            defer { progress.end() }
            let deadline = ContinuousClock.now + .seconds(10)
            var discarded = 0
            while true {
                let report = try await run.carryOut(on: pool) { report in
                    progress.advance(to: discarded + report.changed, of: discarded + report.selection.total)
                }
                guard let report else { return discarded }
                discarded += report.changed
                guard report.leftAlone > 0 else { return discarded }
                guard .now < deadline else {
                    let done = "\(counted(discarded, "change")) discarded"
                    let left = "another session has locked \(report.leftAlone) more: run the command again"
                    throw CommandFailure(.partlyFailed, "\(done); \(left)")
                }
                try await Task.sleep(for: .milliseconds(50))
            }
        }
    }
}

struct EndpointsSeekCommand: EndpointChangeCommand {
    static let configuration = CommandConfiguration(
        commandName: "seek",
        abstract: "Deliver earlier changes to an endpoint again, or skip what waits.",
        usage: "siwad endpoints seek <name> --note <text> [<options>]",
        discussion: """
            With --position or --since, the endpoint gets every change that it wants from there on, even if it got \
            it before: receivers recognise an event by its id. Changes that wait already are left as they are. With \
            --end, the changes that wait are discarded.

            Example:
              siwad endpoints seek shop --since '2026-01-02 03:00' \\
                  --note 'restored from the backup of that time'
            """
    )
    static let verb = "seek"

    @OptionGroup var endpoint: EndpointNameOptions
    @Option(parsing: .unconditional, help: ArgumentHelp("First position that it gets.", valueName: "n"))
    var position: Int64?
    @Option(
        parsing: .unconditional,
        help: WallTime.help("It gets changes published at or after"),
        transform: WallTime.init(argument:)
    )
    var since: WallTime?
    @Flag(help: "Discard what waits.")
    var end = false
    @OptionGroup var audit: AuditOptions
    @OptionGroup var database: DatabaseOptions

    func validate() throws {
        let count = [position != nil, since != nil, end].count(where: \.self)
        try requireNothing(count == 1 ? nil : "pass one of --position, --since and --end", audit.advice)
        guard position ?? 1 >= 1 else { throw ValidationError("--position must be at least 1") }
    }

    func run(_ invocation: Invocation) async throws {
        let (command, console, name) = (self, invocation.console, endpoint.name)
        try await Services.runInterruptibly {
            guard !command.end else {
                let discarded = try await command.discardWaiting(invocation, " --end")
                guard discarded > 0 else { throw CommandFailure(.nothingMatched, "no change waits for \(name)") }
                return console.note("\(counted(discarded, "change")) discarded")
            }
            let action = try command.action(invocation, command.targetOption)
            let number = try await invocation.withDatabase { pool in
                let (id, first, end) = try await pool.change { session in
                    let end = try ChangeLog.end(in: session)
                    return (try command.endpoint.find(in: session).id, try command.first(end, in: session), end)
                }
                guard first <= end else { return 0 }
                return try await EndpointSeek(id, first...end, as: action)
                    .carryOut(name, first...end, on: pool, console)
            }
            guard number > 0 else {
                throw CommandFailure(.nothingMatched, "no change matches that isn't waiting already")
            }
            console.print("\(counted(number, "change")) will be delivered to \(name)")
        }
    }

    private var targetOption: String {
        position.map { " --position \($0)" } ?? since.map { " --since \($0.iso8601)" } ?? ""
    }

    private func first(_ end: Int64, in session: borrowing Session) throws -> Int64 {
        if let since { return try ChangeLog.position(at: since, in: session) + 1 }
        guard let position, position <= end + 1 else {
            throw CommandFailure(.failed, "position \(position ?? 0) is ahead of the log, which ends with \(end)")
        }
        return position
    }
}

extension EndpointSeek {
    /// Shows the progress, and how to go on after an interruption.
    ///
    /// - Parameter further: the rest of the sentence about that, if an endpoint that was just added waits for it.
    func carryOut(
        _ name: String,
        _ positions: ClosedRange<Int64>,
        on pool: ConnectionPool,
        _ console: Console,
        further: String? = nil
    ) async throws -> Int {
        var progress = ProgressLine(title: "seeking", on: console)
        var last = positions.lowerBound - 1
        do {
            let number = try await carryOut(on: pool) { position in
                last = position
                progress.advance(to: Int(position - positions.lowerBound), of: positions.count)
            }
            progress.end()
            return number
        } catch {
            progress.end()
            if last >= positions.lowerBound || further != nil || Task.isCancelled {
                let seek = nextCommand("endpoints seek \(name) --position \(last + 1) --note '…'")
                console.note("so far up to position \(last); \(seek)\(further ?? " goes on")")
            }
            throw error
        }
    }
}

struct EndpointsRemoveCommand: EndpointChangeCommand {
    static let configuration = CommandConfiguration(
        commandName: "remove",
        abstract: "Remove an endpoint with its secrets and deliveries. The published changes stay.",
        usage: "siwad endpoints remove <name> --note <text> [<options>]",
        discussion: "Example:\n  siwad endpoints remove crm --note 'replaced by shop'"
    )
    static let verb = "remove"

    @OptionGroup var endpoint: EndpointNameOptions
    @OptionGroup var audit: AuditOptions
    @OptionGroup var database: DatabaseOptions

    func run(_ invocation: Invocation) async throws {
        let (command, action) = (self, try action(invocation))
        try await Services.runInterruptibly {
            try await invocation.withDatabase { pool in
                let id = try await pool.change { session in try command.endpoint.find(in: session).id }
                try await Endpoints.remove(id, command.endpoint.name, as: action, on: pool, invocation.console)
            }
            invocation.console.print("\(command.endpoint.name) was removed")
        }
    }
}

extension Endpoints {
    /// Deliveries are deleted in batches, because one transaction would hold up publication. Interrupted, the endpoint is
    /// paused, and the same command goes on.
    static func remove(
        _ id: Int32,
        _ name: String,
        as action: OperatorAction,
        on pool: ConnectionPool,
        _ console: Console
    ) async throws {
        try await pool.change { session in
            try pause(id, in: session)
            try OperatorActions.record(action, in: session)
        }
        // For the bar. Counting too many of them would take longer than deleting the first ones.
        let total = try? await pool.withSession(deadline: .seconds(2)) { session throws(PostgresError) in
            try countDeliveries(of: id, in: session)
        }
        var progress = ProgressLine(title: "deleting the deliveries of \(name)", on: console)
        var deleted = 0
        do {
            while true {
                let batch = try await pool.change { session in try deleteDeliveries(of: id, limit: 500, in: session) }
                guard batch > 0 else { break }
                deleted += batch
                if let total { progress.advance(to: min(deleted, total), of: total) }
                try Task.checkCancellation()
            }
            progress.end()
            try await pool.change { session in try delete(id, in: session) }
        } catch {
            progress.end()
            let remove = nextCommand("endpoints remove \(name) --note '…'")
            console.note("\(name) is paused, and \(deleted) of its deliveries are deleted; \(remove) goes on")
            throw error
        }
    }
}
