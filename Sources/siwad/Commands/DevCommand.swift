import AppleTokens
import AppleSimulator
import ArgumentParser
import NotificationServer
import Postgres
import ServiceLifecycle
import Settings
import Telemetry
import Terminal

/// `siwad dev`
struct DevCommand: Command {
    static let configuration = CommandConfiguration(
        commandName: "dev",
        abstract: "Try everything here: PostgreSQL, Apple and notifications included.",
        discussion: """
            Keeps a PostgreSQL cluster and a simulated Apple's key in .siwad, serves as siwad serve does, and shows what \
            each type of event does. Then it serves until Ctrl-C.

            Example:
              siwad dev
              siwad dev --once
            """
    )

    @Flag(name: .long, help: "Leave after the demonstration; exit code 0 only if every event had its effect.")
    var once = false
    @OptionGroup var options: DaemonOptions
    @OptionGroup var common: CommonOptions

    var flags: [SettingKey: String] { options.flags }

    /// Refuses what it would ignore.
    func validate() throws {
        guard options.flags[.databaseURL] == nil, options.flags[.keysURL] == nil else {
            throw ValidationError(
                "siwad dev has a PostgreSQL and an Apple of its own: --database-url and --keys-url are for siwad serve"
            )
        }
    }

    var defaultLogLevel: LogLevel? { .warning }

    func run(_ invocation: Invocation) async throws {
        let console = invocation.console
        console.print(console.style.painted("siwad dev", .bold))
        let place = try await DevelopmentPlace.open(issuer: invocation.configuration.issuer)
        let result: Result<Void, any Error>
        do {
            result = .success(try await run(in: place, invocation))
        } catch {
            result = .failure(error)
        }
        await place.close()
        try result.get()
    }

    private func run(in place: DevelopmentPlace, _ invocation: Invocation) async throws {
        let configuration = try configuration(in: place, invocation)
        let applied = try await migrate(configuration, in: place)
        let console = invocation.console
        let schema = applied.isEmpty ? "schema up to date" : "\(applied.count) migrations applied"
        console.print("  PostgreSQL     \(place.clusterDirectory), \(schema)")
        console.print("  Apple          simulated, key \(place.apple.keyID) in .siwad/apple")
        let daemon = try Daemon(configuration)
        let result: Result<Void, any Error>
        do {
            try await daemon.prepare()
            result = .success(try await serve(daemon, in: place, console))
        } catch {
            result = .failure(configuration.failure(error))
        }
        await daemon.close()
        try result.get()
    }

    private func migrate(_ configuration: Configuration, in place: DevelopmentPlace) async throws -> [Migration] {
        do {
            return try await SchemaState.migrate(try configuration.connectionSettings())
        } catch let error as PostgresError where error.code == .migration {
            let cause = "the database in \(place.clusterDirectory) was made by another siwad"
            throw CommandFailure(.configuration, "\(cause) (\(error)): remove \(place.directories) to begin afresh")
        }
    }

    /// The settings in force, with the place's database and keys over all others.
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
        let (loops, log) = (daemon.loops, daemon.log)
        let once = once
        let services = daemon.services { addresses in
            readiness.yield(addresses)
            readiness.finish()
        }
        let group = Services.group(services, grace: daemon.configuration.shutdownGrace, log: daemon.log)
        async let served: Void = {
            // Also when a server can't start, so that nobody waits for it to be ready.
            defer { readiness.finish() }
            try await Services.run(group, log: log)
        }()
        var isAsExpected = false
        for await addresses in ready {
            try place.writeConfiguration(daemon.configuration, listening: addresses.listening)
            console.print("  Notifications  \(addresses.notifications)")
            console.print("  Operations     \(addresses.operations)/readyz, /metrics\n")
            isAsExpected = try await demonstration.play(against: addresses.notifications, over: loops)
            if once {
                await group.triggerGracefulShutdown()
            } else {
                Self.printNextSteps(console, addresses)
            }
        }
        try await served
        guard isAsExpected || !once else {
            throw CommandFailure(.failed, "not every event had the expected effect: see ✗ above")
        }
    }

    private static func printNextSteps(_ console: Console, _ addresses: DaemonAddresses) {
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
