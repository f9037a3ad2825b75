import AccountStore
import AppleTokens
import ArgumentParser
import Basics
import Effects
import Postgres
import Terminal

struct EndpointsCommand: ParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "endpoints",
        abstract: "Add and operate the endpoints that changes are delivered to.",
        discussion: """
            Example:
              siwad endpoints add shop --note 'shop needs revocations' \\
                  --url https://shop.example.com/hooks/siwa
              siwad endpoints secret shop
              siwad endpoints list
            """,
        subcommands: [
            EndpointsListCommand.self, EndpointsShowCommand.self, EndpointsAddCommand.self, EndpointsEditCommand.self,
            EndpointsApplyCommand.self, EndpointsSecretCommand.self, EndpointsRotateCommand.self,
            EndpointsTestCommand.self,
            EndpointsPauseCommand.self, EndpointsResumeCommand.self, EndpointsSeekCommand.self,
            EndpointsRemoveCommand.self,
        ]
    )
}

struct EndpointsListCommand: ListingCommand {
    static let configuration = CommandConfiguration(
        commandName: "list",
        abstract: "List the endpoints: their status, how far behind they are, and why.",
        usage: "siwad endpoints list [<options>]",
        discussion: "Example:\n  siwad endpoints list --json"
    )

    @OptionGroup var listing: ListingOptions

    func rows(in session: borrowing Session) throws -> Listing<EndpointOverview> {
        EndpointListing.list(Array(try Endpoints.overviews(in: session).prefix(listing.limit)), now: .now())
    }
}

struct EndpointsShowCommand: DatabaseCommand {
    static let configuration = CommandConfiguration(
        commandName: "show",
        abstract: "Show an endpoint: its configuration, health and deliveries.",
        usage: "siwad endpoints show <name> [<options>]",
        discussion: "Example:\n  siwad endpoints show shop"
    )

    @OptionGroup var endpoint: EndpointNameOptions
    @Flag(help: "Print one JSON object.")
    var json = false
    @OptionGroup var database: DatabaseOptions

    func run(_ invocation: Invocation) async throws {
        let options = endpoint
        let overview = try await invocation.read { session in
            let endpoint = try options.find(in: session)
            return try Endpoints.overviews(in: session).first { $0.endpoint.id == endpoint.id }
        }
        if let overview { invocation.console.print(EndpointPage(overview, now: .now()), asJSON: json) }
    }
}

// MARK: - Changes

/// A command that changes an endpoint and is recorded in the audit.
protocol EndpointChangeCommand: DatabaseCommand, Sendable {
    static var verb: String { get }
    var endpoint: EndpointNameOptions { get }
    var audit: AuditOptions { get }
}

extension EndpointChangeCommand {
    func validate() throws { try requireNothing(audit.advice) }

    /// - Parameter further: follows the name of the endpoint in the target.
    func action(_ invocation: Invocation, _ further: String = "") throws -> OperatorAction {
        OperatorAction(
            operatorName: try audit.name(environment: invocation.environment),
            action: "endpoints \(Self.verb)",
            target: endpoint.name + further,
            note: audit.note,
            affected: 1
        )
    }

    /// Changes the endpoint and records that, in one transaction.
    func change<Value: Sendable>(
        _ invocation: Invocation,
        _ body: @Sendable (Endpoint, borrowing Session) throws -> Value
    ) async throws -> Value {
        let (options, action) = (endpoint, try action(invocation))
        return try await invocation.withDatabase { pool in
            try await pool.change { session in
                let value = try body(options.find(in: session), session)
                try OperatorActions.record(action, in: session)
                return value
            }
        }
    }
}

struct EndpointsAddCommand: EndpointChangeCommand {
    static let configuration = CommandConfiguration(
        commandName: "add",
        abstract: "Add an endpoint, with a new secret.",
        usage: "siwad endpoints add <name> --url <url> --note <text> [<options>]",
        discussion: """
            It gets the changes that are published from now on. With --from-start or --since, it also gets earlier \
            ones, and is paused until all of them wait for it. If that is interrupted, it stays paused: the message \
            names the commands that go on.

            --secret-file imports secrets, one a line: whsec_… for hmac, whsk_… for ed25519. Otherwise siwad makes them.

            Example:
              siwad endpoints add shop --note 'shop needs revocations' \\
                  --url https://shop.example.com/hooks/siwa \\
                  --type consent.revoked --type account.deleted
            """
    )
    static let verb = "add"

    @OptionGroup var endpoint: EndpointNameOptions
    @OptionGroup var options: EndpointOptions
    @Flag(help: "It also gets all changes that were published before.")
    var fromStart = false
    @Option(
        parsing: .unconditional,
        help: WallTime.help("It also gets changes published at or after"),
        transform: WallTime.init(argument:)
    )
    var since: WallTime?
    @Option(help: ArgumentHelp("Secrets to use instead of new ones.", valueName: "file"), completion: .file())
    var secretFile: String?
    @OptionGroup var audit: AuditOptions
    @OptionGroup var database: DatabaseOptions

    func validate() throws {
        try requireNothing(options.url == nil ? "--url must say where changes are posted" : nil, audit.advice)
        guard !fromStart || since == nil else {
            throw ValidationError("--from-start and --since exclude each other")
        }
    }

    func run(_ invocation: Invocation) async throws {
        var wanted = EndpointConfiguration(name: endpoint.name, url: nil)
        try options.apply(to: &wanted)
        let secrets = try EndpointSecretMaker(invocation, importing: secretFile)
        try secrets.check(wanted.signature)
        let (action, command, configuration) = (try action(invocation), self, wanted)
        try await Services.runInterruptibly {
            try await invocation.withDatabase { pool in
                let (id, first, end) = try await pool.change { session in
                    guard try Endpoints.all(in: session).allSatisfy({ $0.endpoint.name != configuration.name }) else {
                        let edit = nextCommand("endpoints edit \(configuration.name)")
                        throw CommandFailure(.failed, "\(configuration.name) exists already: \(edit) changes it")
                    }
                    try configuration.checkApps(in: session)
                    let first = try command.firstPosition(in: session)
                    let status: Endpoint.Status = first == nil ? .enabled : .paused
                    let (id, end) = try Endpoints.insert(configuration, status: status, in: session)
                    try secrets.make(configuration.signature, of: id, in: session)
                    try OperatorActions.record(action, in: session)
                    return (id, first, end)
                }
                if let first {
                    try await command.fill(id, first, end, action, pool, invocation.console)
                    try await pool.change { session in try Endpoints.resume(id, in: session) }
                }
            }
            let secret = nextCommand("endpoints secret \(configuration.name)")
            invocation.console.print("\(configuration.name) was added; \(secret) prints the receiver's secret")
        }
    }

    /// The first position of the earlier changes that it gets; nil: none.
    private func firstPosition(in session: borrowing Session) throws -> Int64? {
        try fromStart ? 1 : since.map { try ChangeLog.position(at: $0, in: session) + 1 }
    }

    private func fill(
        _ id: Int32,
        _ first: Int64,
        _ end: Int64,
        _ action: OperatorAction,
        _ pool: ConnectionPool,
        _ console: Console
    ) async throws {
        guard first <= end else { return }
        let further = " and then siwad endpoints resume \(endpoint.name) --note '…' go on; until then it is paused"
        _ = try await EndpointSeek(id, first...end, as: action)
            .carryOut(endpoint.name, first...end, on: pool, console, further: further)
    }
}

struct EndpointsEditCommand: EndpointChangeCommand {
    static let configuration = CommandConfiguration(
        commandName: "edit",
        abstract: "Change the configuration of an endpoint.",
        usage: "siwad endpoints edit <name> --note <text> [<options>]",
        discussion: """
            Only the given options change; the value default restores the default of an option. Daemons apply the \
            change within 5 seconds. Other types and apps apply to changes that are published from now on.

            Example:
              siwad endpoints edit shop --timeout 5s --note 'answers fast'
              siwad endpoints edit shop --app default --note 'all apps'
            """
    )
    static let verb = "edit"

    @OptionGroup var endpoint: EndpointNameOptions
    @OptionGroup var options: EndpointOptions
    @OptionGroup var audit: AuditOptions
    @OptionGroup var database: DatabaseOptions

    func validate() throws {
        try requireNothing(options.isEmpty ? "pass an option to change" : nil, audit.advice)
    }

    func run(_ invocation: Invocation) async throws {
        let (options, name) = (options, endpoint.name)
        // Most edits need no secret.
        let secrets = Result { try EndpointSecretMaker(invocation) }
        let isChanged = try await invocation.withDatabase { [self] pool in
            let action = try action(invocation)
            return try await pool.change { session in
                let endpoint = try self.endpoint.find(in: session)
                var wanted = endpoint.configuration
                try options.apply(to: &wanted)
                guard wanted != endpoint.configuration else { return false }
                try Endpoints.edit(endpoint, to: wanted, secrets, in: session)
                try OperatorActions.record(action, in: session)
                return true
            }
        }
        invocation.console.print(
            isChanged ? "\(name) was changed" : "\(name) is like that already: nothing was changed"
        )
    }
}

extension Endpoints {
    /// Changes an endpoint, and makes the secrets that its signature needs and that it doesn't have.
    static func edit(
        _ endpoint: Endpoint,
        to configuration: EndpointConfiguration,
        _ secrets: Result<EndpointSecretMaker, any Error>,
        in session: borrowing Session
    ) throws {
        if configuration.apps != endpoint.configuration.apps { try configuration.checkApps(in: session) }
        try update(endpoint.id, to: configuration, in: session)
        let live = Set(try EndpointSecrets.live(of: endpoint.id, in: session).map(\.purpose))
        let missing = configuration.signature.purposes.filter { !live.contains($0) }
        for purpose in missing { try secrets.get().make(purpose, of: endpoint.id, in: session) }
    }
}

extension EndpointConfiguration {
    /// - Throws: `CommandFailure` if an app is not registered: it would get nothing.
    func checkApps(in session: borrowing Session) throws {
        let registered = Set(try Clients.list(limit: .max, in: session).map(\.app.rawValue))
        guard let missing = apps?.first(where: { !registered.contains($0) }) else { return }
        let some = registered.sorted().prefix(3).joined(separator: ", ") + (registered.count > 3 ? ", …" : "")
        throw CommandFailure(
            .failed,
            "no app \(VisibleText.visible(missing)) is registered",
            nextStep: registered.isEmpty
                ? "start a daemon with SIWAD_APPS first"
                : "pass one of \(some), or start a daemon with the app in SIWAD_APPS first"
        )
    }
}

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
            What waits is delivered in its order, without waiting for the next probe. --from-end discards it first.

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
            if command.fromEnd { try await command.discardWaiting(invocation, " --from-end") }
            try await command.change(invocation) { endpoint, session in
                try Endpoints.resume(endpoint.id, in: session)
            }
            invocation.console.print("\(name) is enabled")
        }
    }
}

extension EndpointChangeCommand {
    /// Discards the deliveries that wait, in batches.
    func discardWaiting(_ invocation: Invocation, _ option: String) async throws {
        let (console, action) = (invocation.console, try action(invocation, option))
        var filter = DeliveryFilter()
        filter.endpoint = endpoint.name
        filter.statuses = [.pending, .retry]
        let run = DeliveryRun(.discard, filter, as: action)
        let options = endpoint
        try await invocation.withDatabase { pool in
            _ = try await pool.change { session in try options.find(in: session).id }
            var progress = ProgressLine(title: "discarding", on: console)
            defer { progress.end() }
            let report = try await run.carryOut(on: pool) { report in
                progress.advance(to: report.changed, of: report.selection.total)
            }
            console.note("\(counted(report?.changed ?? 0, "change")) discarded")
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
            guard !command.end else { return try await command.discardWaiting(invocation, " --end") }
            let action = try command.action(invocation, command.targetOption)
            let number = try await invocation.withDatabase { pool in
                let (id, first, end) = try await pool.change { session in
                    let end = try ChangeLog.end(in: session)
                    return (try command.endpoint.find(in: session).id, try command.first(end, in: session), end)
                }
                guard first <= end else { return 0 }
                return try await EndpointSeek(id, first...end, as: action)
                    .carryOut(name, first...end, on: pool, console, further: " goes on")
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
    func carryOut(
        _ name: String,
        _ positions: ClosedRange<Int64>,
        on pool: ConnectionPool,
        _ console: Console,
        further: String
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
            let seek = nextCommand("endpoints seek \(name) --position \(last + 1) --note '…'")
            console.note("so far up to position \(last); \(seek)\(further)")
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
                try await Endpoints.remove(id, as: action, on: pool)
            }
            invocation.console.print("\(command.endpoint.name) was removed")
        }
    }
}

extension Endpoints {
    /// Deliveries are deleted in batches, because one transaction would hold up publication. Interrupted, the endpoint is
    /// paused, and the same command goes on.
    static func remove(_ id: Int32, as action: OperatorAction, on pool: ConnectionPool) async throws {
        try await pool.change { session in
            try pause(id, in: session)
            try OperatorActions.record(action, in: session)
        }
        while try await pool.change({ session in try deleteDeliveries(of: id, limit: 500, in: session) }) > 0 {
            try Task.checkCancellation()
        }
        try await pool.change { session in try delete(id, in: session) }
    }
}
