import ArgumentParser
import FoundationEssentials
import Glibc
import Telemetry
import Terminal

/// The root of all commands. To add a command, add its type to `subcommands`.
struct Siwad: ParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "siwad",
        abstract: "Apple's Sign in with Apple notifications, applied to your PostgreSQL database.",
        discussion: """
            Example, to try everything on this machine:
              siwad dev

            Settings come from flags, SIWAD_… variables and the file of --config; siwad config lists them. With \
            --version --json, the version is a JSON object.
            """,
        version: Version().lines(style: .plain).joined(separator: "\n"),
        subcommands: [
            ServeCommand.self, DevCommand.self, MigrateCommand.self, AccountsCommand.self, SessionsCommand.self,
            NotificationsCommand.self, TailCommand.self, ChangesCommand.self, DeadLettersCommand.self,
            AuditCommand.self,
            ClientsCommand.self, EndpointsCommand.self, DeliveriesCommand.self, SealingCommand.self,
            ClientSecretCommand.self, TokensCommand.self, ApplicationTokenCommand.self, SignInCommand.self,
            SimulateCommand.self, VerifyCommand.self, DoctorCommand.self, ConfigCommand.self,
        ]
    )
}

@main
struct Main {
    /// Start of the process, for the log line with the time until it was ready.
    static let start = ContinuousClock.now

    static func main() async {
        _ = start
        leaveNoCoreDump()
        let environment = ProcessInfo.processInfo.environment
        let runner = CommandRunner(
            environment: environment,
            console: .standard(environment: environment),
            startLog: { Log.bootstrap(level: $0, format: $1) }
        )
        let status = await runner.run(Array(CommandLine.arguments.dropFirst()))
        exit(status.rawValue)
    }

    /// Lowers the soft limit of core dumps to zero, which the unit does too: a dump would contain tokens, keys and the database's
    /// password. `prlimit --core` raises it again in a running process.
    private static func leaveNoCoreDump() {
        var limit = rlimit()
        let resource = __rlimit_resource_t(RLIMIT_CORE.rawValue)
        guard getrlimit(resource, &limit) == 0 else { return }
        limit.rlim_cur = 0
        setrlimit(resource, &limit)
    }
}
