import AccountStore
import ArgumentParser
import Postgres
import Settings
import Terminal

/// `siwad sessions`
struct SessionsCommand: ParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "sessions",
        abstract: "Look at sessions, and end them.",
        discussion: "Example:\n  siwad sessions end a3f1c5d2 --note 'phone stolen, ticket 4711'",
        subcommands: [SessionsListCommand.self, SessionsEndCommand.self]
    )
}

/// `siwad sessions list`
struct SessionsListCommand: Command {
    static let configuration = CommandConfiguration(
        commandName: "list",
        abstract: "List sessions, the one opened last first.",
        discussion: """
            --sub finds its sessions by an index. The others look through those opened between --since and --until, the \
            newest first, until there are enough: in a large database, name a time with them.

            Example:
              siwad sessions list --ended --reason consent-revoked \\
                  --app com.example.app --since 2026-01-01
            """
    )

    @OptionGroup var filter: AccountFilterOptions
    @Flag(name: .long, help: "Only those that are live.")
    var live = false
    @Flag(name: .long, help: "Only those that ended or expired.")
    var ended = false
    @Option(
        name: .long,
        help: ArgumentHelp(
            "consent-revoked, account-deleted, signed-out, rotated, operator or expired.",
            valueName: "reason"
        )
    )
    var reason: String?
    @Option(name: .long, help: TimeArgument.help("Opened at or after"), transform: TimeArgument.init(parsing:))
    var since: TimeArgument?
    @Option(name: .long, help: TimeArgument.help("Opened before"), transform: TimeArgument.init(parsing:))
    var until: TimeArgument?
    @OptionGroup var listing: ListingOptions
    @OptionGroup var database: DatabaseOptions
    @OptionGroup var common: CommonOptions

    var flags: [SettingKey: String] { database.flags }

    /// Refuses reasons that no session has, and what contradicts itself.
    func validate() throws {
        try AccountFilterOptions.check(reason, "--reason", SessionFilter.endReasons)
        guard !live || !ended else { throw ValidationError("--live and --ended exclude each other") }
        guard !live || reason == nil else { throw ValidationError("a session that is --live has no --reason yet") }
    }

    func run(_ invocation: Invocation) async throws {
        let filter = SessionFilter(
            subject: filter.sub,
            team: filter.team,
            app: filter.app,
            liveness: live ? .live : ended ? .ended : nil,
            endReason: reason,
            since: since?.time,
            until: until?.time,
            limit: listing.limit
        )
        let rows = try await Database.with(invocation.configuration) { database in
            try await database.read { session throws(PostgresError) in try Sessions.list(filter, in: session) }
        }
        try AccountListings.sessions(rows).print(listing, to: invocation.console)
    }
}
