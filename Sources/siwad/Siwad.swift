import ArgumentParser

/// The root of all commands.
struct Siwad: ParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "siwad",
        abstract: "Apple's Sign in with Apple notifications, applied to your PostgreSQL database.",
        discussion: """
            Example, to try everything on this machine:
              siwad dev

            Settings come from flags, SIWAD_… variables and the file that --config names; siwad config lists them.
            """,
        version: Version.current,
        subcommands: [
            ServeCommand.self, DevCommand.self, MigrateCommand.self, AccountsCommand.self, SessionsCommand.self,
            NotificationsCommand.self, DeadLettersCommand.self, ClientsCommand.self, SimulateCommand.self,
            VerifyCommand.self,
            DoctorCommand.self, ConfigCommand.self,
        ]
    )
}

/// What this build is.
enum Version {
    /// As `siwad --version`, the metrics and the User-Agent say it.
    static let current = "0.1.0"
}
