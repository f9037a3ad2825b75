import AccountStore
import AppleTokens
import ArgumentParser
import Postgres
import Settings
import Terminal

/// `siwad clients`
struct ClientsCommand: ParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "clients",
        abstract: "List the client ids that applications may use, and remove them.",
        discussion: """
            A daemon that starts or reloads adds and updates the client ids of its SIWAD_APPS. It removes none, because \
            another daemon may serve them.

            Example:
              siwad clients list
            """,
        subcommands: [ClientsListCommand.self, ClientsRemoveCommand.self]
    )
}

/// `siwad clients list`
struct ClientsListCommand: Command {
    static let configuration = CommandConfiguration(
        commandName: "list",
        abstract: "List the client ids of all app groups.",
        usage: "siwad clients list [<options>]",
        discussion: "Example:\n  siwad clients list --json"
    )

    @OptionGroup var listing: ListingOptions
    @OptionGroup var database: DatabaseOptions
    @OptionGroup var common: CommonOptions

    var flags: [SettingKey: String] { database.flags }

    func run(_ invocation: Invocation) async throws {
        let limit = listing.limit
        let rows = try await Database.with(invocation.configuration) { database in
            try await database.read { session throws(PostgresError) in try Clients.list(limit: limit, in: session) }
        }
        let list = Listing(
            rows: rows,
            nouns: ("client id", "client ids"),
            columns: [.init("CLIENT ID", cut: .start), .init("APP", cut: .start), .init("TEAM")],
            cells: { row in
                [Table.Cell(row.client.rawValue), Table.Cell(row.app.rawValue), Table.Cell(row.team.rawValue)]
            },
            json: { row in
                .object([
                    .init("client_id", .string(row.client.rawValue)), .init("app_id", .string(row.app.rawValue)),
                    .init("team_id", .string(row.team.rawValue)),
                ])
            }
        )
        try list.print(listing, to: invocation.console)
    }
}

/// `siwad clients remove`
struct ClientsRemoveCommand: Command {
    static let configuration = CommandConfiguration(
        commandName: "remove",
        abstract: "Remove client ids; the audit keeps who did it and why.",
        usage: "siwad clients remove <client-id> ... [<options>]",
        discussion: """
            Applications that sign people in with a removed client id get the error SW001. Accounts and sessions stay. \
            Remove the client id from the SIWAD_APPS of every daemon first: a daemon that starts adds it again.

            Example:
              siwad clients remove com.example.old --note 'app was sold'
            """
    )

    @Argument(help: ArgumentHelp("Client ids to remove.", valueName: "client-id"))
    var clients: [String]
    @OptionGroup var rehearsal: RehearsalOptions
    @Flag(name: .long, help: "One JSON object per client id.")
    var json = false
    @OptionGroup var database: DatabaseOptions
    @OptionGroup var common: CommonOptions

    var flags: [SettingKey: String] { database.flags }

    func run(_ invocation: Invocation) async throws {
        let wanted = clients.map { ClientID($0) }
        let (name, note) = (try rehearsal.name(environment: invocation.environment), rehearsal.note ?? "")
        let isDryRun = rehearsal.dryRun
        let found = try await Database.with(invocation.configuration) { database in
            try await database.write { session throws(PostgresError) in
                if isDryRun {
                    return try Clients.list(limit: .max, in: session).map(\.client).filter(wanted.contains)
                }
                return try Clients.remove(wanted, by: name, note: note, in: session)
            }
        }
        guard !found.isEmpty else { throw CommandFailure(.nothingMatched, "no client id matches: nothing was removed") }
        for client in found {
            let text = client.rawValue
            invocation.console.print(
                json ? JSONText.object([.init("client_id", .string(text))]).line : VisibleText.visible(text)
            )
        }
        if isDryRun {
            invocation.console.note("dry run: \(counted(found.count, "client id")) would go, nothing was changed")
        } else if !json {
            invocation.console.note("\(found.count) removed")
        }
        let others = Set(wanted).subtracting(found).count
        guard others == 0 else {
            throw CommandFailure(
                .partlyFailed,
                "\(others) of \(Set(wanted).count) named \(others == 1 ? "is" : "are") not registered: siwad clients list "
                    + "shows those that are"
            )
        }
    }
}
