import AppleTokens
import AppleSimulator
import ArgumentParser
import Postgres
import ServiceLifecycle
import Settings
import Telemetry
import Terminal

struct DevCommand: DaemonCommand {
    static let configuration = CommandConfiguration(
        commandName: "dev",
        abstract: "Try siwad on this machine, with its own PostgreSQL and a simulated Apple.",
        discussion: """
            Creates a PostgreSQL cluster and the key of a simulated Apple in the directory .siwad, and starts the same \
            endpoints as siwad serve. Then it sends an event of each type and prints the effects, and serves until \
            Ctrl-C.

            Example:
              siwad dev
              siwad dev --once
            """
    )

    @Flag(help: "Exit after the demonstration, with 0 only if every event had its effect.")
    var once = false
    @OptionGroup var options: DaemonOptions
    @OptionGroup var common: CommonOptions

    func validate() throws {
        guard options.flags[.databaseURL] == nil, options.flags[.keysURL] == nil else {
            throw ValidationError(
                "siwad dev has its own PostgreSQL and simulated Apple: --database-url and --keys-url are for siwad serve"
            )
        }
    }

    var defaultLogLevel: LogLevel? { .warning }

    func run(_ invocation: Invocation) async throws {
        let console = invocation.console
        console.print(console.style.painted("siwad dev", .bold))
        let place = try await DevelopmentPlace.open(issuer: invocation.configuration.issuer)
        try await withCleanup(place.close) { try await run(in: place, invocation) }
    }

    private func run(in place: DevelopmentPlace, _ invocation: Invocation) async throws {
        let configuration = try configuration(in: place, invocation)
        let applied = try await migrate(configuration, in: place)
        let console = invocation.console
        let schema = applied.isEmpty ? "schema up to date" : "\(applied.count) migrations applied"
        console.print("  PostgreSQL     \(place.clusterDirectory), \(schema)")
        console.print("  Apple          simulated, key \(place.apple.keyID) in .siwad/apple")
        try await Daemon.with(configuration) { try await serve($0, in: place, console) }
    }

    private func migrate(_ configuration: Configuration, in place: DevelopmentPlace) async throws -> [Migration] {
        do {
            return try await SchemaState.migrate(try configuration.connectionSettings())
        } catch let error as PostgresError where error.code == .migration {
            let cause = "the database in \(place.clusterDirectory) was created by another version of siwad"
            throw CommandFailure(.configuration, "\(cause) (\(error)): remove \(place.directories) to start again")
        }
    }

    /// The settings in force; the place's database and keys override all others.
    private func configuration(in place: DevelopmentPlace, _ invocation: Invocation) throws -> Configuration {
        var flags = options.flags
        let apps = flags[.apps] ?? invocation.configuration.entries.first { $0.key == .apps }?.text
        flags.merge(place.flags) { _, decided in decided }
        flags[.apps] = apps ?? DevelopmentPlace.apps
        return try Configuration(from: common.sources(flags: flags, environment: invocation.environment))
    }

    private func serve(_ daemon: Daemon, in place: DevelopmentPlace, _ console: Console) async throws {
        let (ready, readiness) = AsyncStream<DaemonAddresses>.makeStream()
        let groups = try daemon.configuration.audiences().groups
        let demonstration = Demonstration(
            apple: place.apple,
            groups: Array(groups.filter { $0.team == groups.first?.team }.prefix(2)),
            pool: daemon.pool,
            console: console
        )
        let log = daemon.log
        let services = daemon.services { addresses in
            readiness.yield(addresses)
            readiness.finish()
        }
        let group = Services.group(services, grace: daemon.configuration.shutdownGrace, log: log)
        async let served: Void = {
            // Ends the loop below if a server can't start.
            defer { readiness.finish() }
            try await Services.run(group, log: log)
        }()
        var isAsExpected = false
        for await addresses in ready {
            try place.writeConfiguration(daemon.configuration, listening: addresses.listening)
            console.print("  Notifications  \(addresses.notifications)")
            console.print("  Operations     \(addresses.operations)/readyz, /metrics\n")
            isAsExpected = try await demonstration.play(against: addresses.notifications, over: daemon.loops)
            if once {
                await group.triggerGracefulShutdown()
            } else {
                console.print(
                    lines: [
                        "Serving until Ctrl-C. In another terminal:",
                        "  siwad accounts list --config .siwad/siwad.yaml",
                        "  siwad simulate send --config .siwad/siwad.yaml --key .siwad/apple/key.pem \\",
                        "      --type consent-revoked --app com.example.app \(addresses.notifications)",
                    ]
                )
            }
        }
        try await served
        guard isAsExpected || !once else {
            throw CommandFailure(.failed, "not every event had the expected effect: see ✗ above")
        }
    }
}
