import AccountStore
import ArgumentParser
import Postgres
import Settings
import Terminal

/// `siwad notifications`
struct NotificationsCommand: ParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "notifications",
        abstract: "Look at the notifications that Apple sent.",
        discussion: "Example:\n  siwad notifications list --type account-deleted --since 2026-01-01",
        subcommands: [NotificationsListCommand.self, NotificationsShowCommand.self]
    )
}

/// `siwad notifications list`
struct NotificationsListCommand: Command {
    static let configuration = CommandConfiguration(
        commandName: "list",
        abstract: "List notifications, the one received last first.",
        discussion: """
            --sub and --jti find theirs by an index. The others look through what was received between --since and --until, \
            the newest first, until there are enough: in a large database, name a time with them.

            Example:
              siwad notifications list --outcome superseded --since 2026-01-01 --json
            """
    )

    @OptionGroup var filter: AccountFilterOptions
    @Option(name: .long, help: "Event type; either spelling finds a deletion.")
    var type: String?
    @Option(name: .long, help: "applied, superseded or unchanged.")
    var outcome: String?
    @Option(name: .long, help: "endpoint, spool or replay.")
    var source: String?
    @Option(name: .long, parsing: .unconditional, help: "Its identifier.")
    var jti: String?
    @Option(name: .long, help: TimeArgument.help("Received at or after"), transform: TimeArgument.init(parsing:))
    var since: TimeArgument?
    @Option(name: .long, help: TimeArgument.help("Received before"), transform: TimeArgument.init(parsing:))
    var until: TimeArgument?
    @OptionGroup var listing: ListingOptions
    @OptionGroup var database: DatabaseOptions
    @OptionGroup var common: CommonOptions

    var flags: [SettingKey: String] { database.flags }

    /// Refuses outcomes and sources that no notification has.
    func validate() throws {
        try AccountFilterOptions.check(source, "--source", ["endpoint", "spool", "replay"])
        try AccountFilterOptions.check(outcome, "--outcome", ["applied", "superseded", "unchanged"])
    }

    func run(_ invocation: Invocation) async throws {
        let filter = NotificationFilter(
            id: jti,
            subject: filter.sub,
            team: filter.team,
            app: filter.app,
            eventType: type,
            outcome: outcome,
            source: source,
            since: since?.time,
            until: until?.time,
            limit: listing.limit
        )
        let rows = try await Database.with(invocation.configuration) { database in
            try await database.read { session throws(PostgresError) in try NotificationLog.list(filter, in: session) }
        }
        try NotificationListing.list(rows).print(listing, to: invocation.console)
    }
}

/// `siwad notifications show`
struct NotificationsShowCommand: Command {
    static let configuration = CommandConfiguration(
        commandName: "show",
        abstract: "Everything about one notification, the token as Apple signed it included.",
        usage: "siwad notifications show <id> [<options>]",
        discussion: """
            A jti that starts with a hyphen goes after --.

            Example:
              siwad notifications show 4jH5Tn0aSyGv1cbXqRkPuQ
              siwad notifications show -- -Nx_UIPpS8QtCbcQfa-sAg
            """
    )

    @Argument(help: "The jti.")
    var id: String
    @Flag(name: .long, help: "One JSON object.")
    var json = false
    @OptionGroup var database: DatabaseOptions
    @OptionGroup var common: CommonOptions

    var flags: [SettingKey: String] { database.flags }

    func run(_ invocation: Invocation) async throws {
        let id = id
        let found = try await Database.with(invocation.configuration) { database in
            try await database.read { session throws(PostgresError) in try NotificationLog.find(id: id, in: session) }
        }
        guard !found.isEmpty else {
            throw CommandFailure(.nothingMatched, "no notification of this jti: siwad notifications list shows some")
        }
        for notification in found {
            if json {
                invocation.console.print(NotificationListing.json(notification).line)
            } else {
                invocation.console.print(lines: NotificationListing.page(notification))
            }
        }
    }
}
