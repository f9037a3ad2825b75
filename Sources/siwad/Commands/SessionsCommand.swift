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
        discussion: "Example:\n  siwad sessions list --live --app com.example.app"
    )

    @OptionGroup var filter: AccountFilterOptions
    @Flag(name: .long, help: "Only those that are live.")
    var live = false
    @OptionGroup var listing: ListingOptions
    @OptionGroup var database: DatabaseOptions
    @OptionGroup var common: CommonOptions

    var flags: [SettingKey: String] { database.flags }

    func run(_ invocation: Invocation) async throws {
        let filter = SessionFilter(
            subject: filter.sub,
            team: filter.team,
            app: filter.app,
            onlyLive: live,
            limit: listing.limit
        )
        let rows = try await Database.with(invocation.configuration) { database in
            try await database.read { session throws(PostgresError) in try Sessions.list(filter, in: session) }
        }
        try AccountListings.sessions(rows).print(listing, to: invocation.console)
    }
}

/// `siwad sessions end`
struct SessionsEndCommand: Command {
    static let configuration = CommandConfiguration(
        commandName: "end",
        abstract: "End live sessions as an operator; the audit keeps who did it and why.",
        discussion: """
            Ends the sessions that are named, or all live ones of a person. Prints the sessions that it ended.

            Example:
              siwad sessions end a3f1c5d2 --note 'phone stolen, ticket 4711'
              siwad sessions end --sub 000768.6166f031167141e695698239959f591a.1521 --note 'asked by phone'
            """
    )

    @Argument(help: "Sessions to end.")
    var sessions: [String] = []
    @OptionGroup var filter: AccountFilterOptions
    @OptionGroup var audit: OperatorOptions
    @Flag(name: .long, help: "One JSON object per session.")
    var json = false
    @OptionGroup var database: DatabaseOptions
    @OptionGroup var common: CommonOptions

    var flags: [SettingKey: String] { database.flags }

    /// Refuses to end everybody's sessions.
    func validate() throws {
        guard !sessions.isEmpty || filter.sub != nil else {
            throw ValidationError("name sessions, or a person with --sub")
        }
    }

    func run(_ invocation: Invocation) async throws {
        let ids: [String?] = sessions.isEmpty ? [nil] : sessions
        let filters = ids.map {
            SessionFilter(id: $0, subject: filter.sub, team: filter.team, app: filter.app, limit: nil)
        }
        let (name, note) = (audit.name(environment: invocation.environment), audit.note)
        let ended = try await Database.with(invocation.configuration) { database in
            try await database.write { session throws(PostgresError) in
                var ended: [String] = []
                for filter in filters {
                    ended += try Sessions.end(filter, by: name, note: note, in: session)
                }
                return ended
            }
        }
        for id in ended {
            invocation.console.print(
                json ? JSONText.object([.init("session_id", .string(id))]).line : VisibleText.visible(id)
            )
        }
        if ended.isEmpty { throw CommandFailure(.nothingMatched, "no live session matches: nothing was ended") }
        if !json { invocation.console.note("\(ended.count) ended") }
    }
}
