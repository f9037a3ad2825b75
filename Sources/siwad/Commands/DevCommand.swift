import AccountStore
import AppleSimulator
import AppleTokens
import ArgumentParser
import Basics
import Ingest
import Listening
import Postgres
import ServiceLifecycle
import Settings
import Telemetry
import Terminal
import WebClient

struct DevCommand: DaemonCommand {
    static let configuration = CommandConfiguration(
        commandName: "dev",
        abstract: "Try siwad on this machine, with its own PostgreSQL and a simulated Apple.",
        usage: "siwad dev [<options>]",
        discussion: """
            Creates a PostgreSQL cluster and the key of a simulated Apple in the directory .siwad, and starts the same \
            endpoints as siwad serve. At the first start it sends an event of each type and prints the effects, and what \
            an application in this process gets by webhook; then it signs a person in. After that it serves until Ctrl-C, \
            and prints each event that arrives. The next start continues with the same database.

            It has its own database, simulated Apple, application socket and secrets: it refuses flags for them. In the \
            environment and in a file these settings must be valid, and have no effect. All others have their effect and, \
            except those of the log, are written to .siwad/siwad.yaml for the other commands.

            Example:
              siwad dev
              siwad dev --once
              siwad dev --reset
            """
    )

    @Flag(help: "Exit after the demonstration, with 0 only if every event had its effect and was delivered once.")
    var once = false
    @Flag(help: "Delete the database in .siwad, and exit.")
    var reset = false
    @Option(
        help: ArgumentHelp(
            "Loopback address of the simulated Apple (default: 127.0.0.1:8090; any port if --listen leaves it open).",
            valueName: "host:port"
        )
    )
    var appleListen: String?
    @OptionGroup var options: DaemonOptions
    @OptionGroup var common: CommonOptions

    func validate() throws {
        guard !once || !reset else { throw ValidationError("--reset excludes --once: run one after the other") }
        let refused = DevelopmentPlace.ownSettings.filter { options.flags[$0] != nil }.map(\.flag)
        guard refused.isEmpty else {
            throw ValidationError(
                "siwad dev has its own PostgreSQL, simulated Apple and application socket: leave out "
                    + refused.joined(separator: ", ")
            )
        }
    }

    var defaultLogLevel: LogLevel? { .warning }

    func run(_ invocation: Invocation) async throws {
        let console = invocation.console
        if reset {
            let isDeleted = try await DevelopmentPlace.reset()
            return console.print(isDeleted ? "The database of siwad dev is deleted." : "There is no database here.")
        }
        let given = invocation.configuration
        console.print(console.style.painted("siwad dev", .bold))
        let ignored = DevelopmentPlace.ownSettings.filter { given.origin(of: $0) != .unset }.map(given.name(of:))
        if !ignored.isEmpty { console.note("siwad dev ignores \(ignored.joined(separator: ", ")): it has its own") }
        let address = try appleAddress(given)
        let groups = try (given.apps ?? AudienceMap(parsing: DevelopmentPlace.apps)).groups
        let place = try await DevelopmentPlace.open(issuer: given.issuer)
        try await withCleanup(place.close) {
            let apple = LocalApple(try place.tokenServer(groups))
            // The end of the server is a cancellation, which it would report as an error for each open connection.
            try await apple.serve(on: address, log: Log(label: "siwad").quieter(than: .critical)) { url in
                let flags = place.flags(
                    appleURL: url,
                    teams: Set(groups.map(\.team)),
                    allowing: given.deliveryAllow
                )
                let configuration = try configuration(with: flags, place.environment, invocation)
                try await run(in: place, apple, configuration, console)
            }
        }
        guard !once else { return }
        console.print("\nStopped. siwad dev continues with this database, --reset deletes it. Goodbye.")
    }

    private func appleAddress(_ configuration: Configuration) throws -> ListenAddress {
        let isOpen = (options.flags[.listen] ?? configuration.listen.description).hasSuffix(":0")
        let address = try ListenAddress(
            parsing: appleListen ?? (isOpen ? "127.0.0.1:0" : "127.0.0.1:8090"),
            setting: "--apple-listen"
        )
        guard (try? AppleURL(parsing: "http://\(address)")) != nil else {
            throw CommandFailure(.usage, "--apple-listen \(address) is no loopback address: use 127.0.0.1 or ::1")
        }
        return address
    }

    private func run(
        in place: DevelopmentPlace,
        _ apple: LocalApple,
        _ configuration: Configuration,
        _ console: Console
    ) async throws {
        let applied = try await migrate(configuration, in: place)
        let schema = applied.isEmpty ? "schema up to date" : "\(applied.count) migrations applied"
        console.print("  PostgreSQL     \(place.clusterDirectory), \(schema)")
        console.print("  Apple          simulated, \(configuration.appleURL), keys in .siwad/apple")
        try await Daemon.with(configuration) { try await serve($0, apple, in: place, console) }
    }

    private func migrate(_ configuration: Configuration, in place: DevelopmentPlace) async throws -> [Migration] {
        do {
            return try await SchemaState.migrate(try configuration.connectionSettings())
        } catch let error as PostgresError where error.code == .migration {
            let cause = "the database in \(place.clusterDirectory) was created by another version of siwad"
            throw CommandFailure(.configuration, "\(cause) (\(error))", nextStep: "siwad dev --reset deletes it")
        }
    }

    /// The settings in force; the place's database and keys override all others. Secrets in the environment belong to another
    /// siwad, and its files would conflict with the place's keys. Application tokens and TLS of any source would lock out
    /// the demonstration and the requests that siwad dev proposes.
    private func configuration(
        with decided: [SettingKey: String],
        _ decidedEnvironment: [String: String],
        _ invocation: Invocation
    ) throws -> Configuration {
        var flags = options.flags
        let apps = flags[.apps] ?? invocation.configuration.entries.first { $0.key == .apps }?.text
        flags.merge(decided) { _, decided in decided }
        flags[.apps] = apps ?? DevelopmentPlace.apps
        let secrets = SettingKey.allCases.filter(\.isSecret)
            .flatMap { [$0.environmentName, $0.environmentFileName].compactMap(\.self) }
        let environment = invocation.environment.filter { !secrets.contains($0.key) }
            .merging(decidedEnvironment) { _, ours in ours }
        var sources = common.sources(flags: flags, environment: environment)
        sources.ignored = [.applicationTokens, .applicationTLSCertificate, .applicationTLSKey]
        return try Configuration(from: sources)
    }

    private func serve(
        _ daemon: Daemon,
        _ apple: LocalApple,
        in place: DevelopmentPlace,
        _ console: Console
    ) async throws {
        let receiver = try DemonstrationReceiver()
        try await withCleanup(receiver.close) {
            if let keys = daemon.configuration.sealingKeys, daemon.dispatcher != nil {
                let url = try await receiver.start(on: daemon.loops.group)
                let secret = receiver.secret
                try await DemonstrationEndpoint.register(url, secret: secret, keys: keys, in: daemon.pool)
            }
            try await serve(daemon, apple, telling: daemon.dispatcher == nil ? nil : receiver, in: place, console)
        }
    }

    /// - Parameter receiver: the application; nil if SIWAD_EFFECTS is off.
    private func serve(
        _ daemon: Daemon,
        _ apple: LocalApple,
        telling receiver: DemonstrationReceiver?,
        in place: DevelopmentPlace,
        _ console: Console
    ) async throws {
        let (ready, readiness) = AsyncStream<DaemonAddresses>.makeStream()
        // The demonstration prints its own.
        daemon.intake.events.redirect { _ in }
        // The last to start is the first to end, so that the endpoint answers its last request.
        let presentation = NamedService("presentation", endsGroup: once, endedBy: { readiness.finish() }) {
            for await addresses in ready {
                do {
                    try await present(daemon, apple, at: addresses, telling: receiver, in: place, console)
                } catch is CancellationError {
                    break
                }
                if once { return }
            }
            guard !once else {
                throw CommandFailure(.failed, "interrupted before the demonstration was complete")
            }
        }
        let services = daemon.services(drainLimit: .zero) { readiness.yield($0) } + [presentation]
        let group = Services.group(services, grace: daemon.configuration.shutdownGrace, log: daemon.log)
        try await Services.run(group, log: daemon.log, repeats: .seconds(1))
    }

    /// - Throws: `CancellationError` if the demonstration is interrupted by the shutdown.
    private func present(
        _ daemon: Daemon,
        _ apple: LocalApple,
        at addresses: DaemonAddresses,
        telling receiver: DemonstrationReceiver?,
        in place: DevelopmentPlace,
        _ console: Console
    ) async throws {
        // Nothing reads the messages after the demonstration.
        defer { receiver?.stopCollecting() }
        let groups = try daemon.configuration.audiences().groups
        try place.writeConfiguration(daemon.configuration, listening: addresses.listening)
        console.print("  Notifications  \(addresses.notifications)")
        console.print("  Operations     \(addresses.operations)/readyz, /metrics")
        console.print("  Sign-in        \(DevelopmentPlace.applicationSocket)\n")
        apple.notify(
            try NotificationSender(
                url: addresses.notifications,
                version: Version.current,
                eventLoopGroup: daemon.loops.group
            )
        )
        let hasPeople = try await !people(AccountFilter(limit: 1), daemon.pool).isEmpty
        if once || !hasPeople {
            let demonstration = Demonstration(
                apple: place.apple,
                groups: Array(groups.filter { $0.team == groups.first?.team }.prefix(2)),
                pool: daemon.pool,
                receiver: receiver,
                nativeSignIn: DemonstrationSignIn(
                    apple: apple,
                    client: groups[0].clients[0],
                    socket: place.applicationSocketPath,
                    loops: daemon.loops,
                    console: console
                ),
                console: console
            )
            let isAsExpected = try await demonstration.play(against: addresses.notifications, over: daemon.loops)
            guard isAsExpected || !once else {
                throw CommandFailure(.failed, "not every event had the expected effect: see ✗ above")
            }
        } else {
            console.print("The demonstration is left out: its people are in the database already.\n")
        }
        guard !once else { return }
        daemon.intake.events.redirect { console.print(lines: $0.lines(style: console.style)) }
        let person = try await people(AccountFilter(state: "authorized", limit: 1), daemon.pool).first
        console.print(lines: nextSteps(addresses, person, groups))
    }

    private func people(_ filter: AccountFilter, _ pool: ConnectionPool) async throws -> [AccountState] {
        try await pool.withSession { session throws(PostgresError) in try Accounts.states(filter, in: session) }
    }

    private func nextSteps(
        _ addresses: DaemonAddresses,
        _ person: AccountState?,
        _ groups: [AudienceMap.Group]
    ) -> [String] {
        let app = person?.app ?? groups[0].app
        let client = groups[0].clients[0]
        return [
            "Serving until Ctrl-C; events are printed as they arrive. In another terminal:",
            "  siwad accounts list --config \(DevelopmentPlace.configurationFile)",
            "  siwad simulate send --config \(DevelopmentPlace.configurationFile) --key .siwad/apple/key.pem \\",
            "      --type consent-revoked --app \(app) \\",
            person.map { "      --sub \($0.subject) \\" },
            "      \(addresses.notifications)",
            "To sign a person in as a backend does, and to let the person stop using the app:",
            "  siwad simulate sign-in --config \(DevelopmentPlace.configurationFile) --client-id \(client) --request \\",
            "      | curl --unix-socket \(DevelopmentPlace.applicationSocket) http://siwad/v1/sign-in --json @-",
            "  siwad simulate person stop-using --config \(DevelopmentPlace.configurationFile) --client-id \(client)",
            "To look around:",
            "  siwad notifications list --config \(DevelopmentPlace.configurationFile)",
            "  siwad endpoints list --config \(DevelopmentPlace.configurationFile)",
            "  siwad doctor --config \(DevelopmentPlace.configurationFile)",
            "To start again with an empty database: Ctrl-C, then siwad dev --reset.",
            "",
        ].compactMap(\.self)
    }
}
