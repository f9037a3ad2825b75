import AccountStore
import AppleTokens
import ArgumentParser
import Basics
import Effects
import Postgres
import Settings
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
                let (id, revision, first, end) = try await pool.change { session in
                    let others = try Endpoints.all(in: session).map(\.endpoint)
                    guard others.allSatisfy({ $0.name != configuration.name }) else {
                        let edit = nextCommand("endpoints edit \(configuration.name) --url … --note '…'")
                        throw CommandFailure(.failed, "\(configuration.name) exists already: \(edit) changes it")
                    }
                    try configuration.checkApps(in: session)
                    try secrets.checkKeys(of: others.filter { $0.status == .enabled }, in: session)
                    let first = try command.firstPosition(in: session)
                    let status: Endpoint.Status = first == nil ? .enabled : .paused
                    let (id, end) = try Endpoints.insert(configuration, status: status, in: session)
                    try secrets.make(configuration.signature, of: id, in: session)
                    try OperatorActions.record(action, in: session)
                    return (id, try Endpoints.revision(of: id, in: session), first, end)
                }
                if let first {
                    try await command.fill(id, first, end, action, pool, invocation.console)
                    let name = configuration.name
                    switch try await pool.change({ try Endpoints.resume(id, unchangedSince: revision, in: $0) }) {
                    case .enabled: break
                    case .removed:
                        let cause = "\(name) was added, and another operator removed it while it was filled"
                        throw CommandFailure(.failed, cause)
                    case .changed:
                        let cause = "\(name) was added, and another operator changed it while it was filled"
                        let resume = nextCommand("endpoints resume \(name) --note '…'")
                        throw CommandFailure(.failed, "\(cause): it stays paused; \(resume) enables it")
                    }
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
            change within 5 seconds, and try a new URL immediately. Other types and apps apply to changes that are published \
            from now on.

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
                // The update writes all columns: another one between the reading and the update would be lost.
                try Endpoints.lock([name], in: session)
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
        if configuration.url != endpoint.configuration.url { try forgetFailures(of: endpoint.id, in: session) }
        let live = Set(try EndpointSecrets.live(of: endpoint.id, in: session).map(\.purpose))
        let missing = configuration.signature.purposes.filter { !live.contains($0) }
        guard !missing.isEmpty else { return }
        let secrets = try secrets.get()
        try secrets.checkKeys(of: [endpoint], in: session)
        for purpose in missing { try secrets.make(purpose, of: endpoint.id, in: session) }
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
            "no app \(Redaction.redacted(VisibleText.visible(missing))) is registered",
            nextStep: registered.isEmpty
                ? "start a daemon with SIWAD_APPS first"
                : "pass one of \(some), or start a daemon with the app in SIWAD_APPS first"
        )
    }
}
