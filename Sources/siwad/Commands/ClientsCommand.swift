import AccountStore
import AppleTokens
import ArgumentParser
import Postgres
import Terminal

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

struct ClientsListCommand: ListingCommand {
    static let configuration = CommandConfiguration(
        commandName: "list",
        abstract: "List the client ids of all app groups.",
        usage: "siwad clients list [<options>]",
        discussion: "Example:\n  siwad clients list --json"
    )

    @OptionGroup var listing: ListingOptions

    func rows(in session: borrowing Session) throws(PostgresError) -> Listing<RegisteredClient> {
        Listing(
            rows: try Clients.list(limit: listing.limit, in: session),
            noun: "client id",
            columns: [
                .init("client_id", \.client.rawValue, "CLIENT ID", .cutStart(minimum: 8)),
                .init("app_id", \.app.rawValue, "APP", .cutStart(minimum: 8)),
                .init("team_id", \.team.rawValue, "TEAM"),
            ]
        )
    }
}

struct ClientsRemoveCommand: DatabaseCommand {
    static let configuration = CommandConfiguration(
        commandName: "remove",
        abstract: "Remove client ids; the audit records the operator and the note.",
        usage: "siwad clients remove <client-id> ... [<options>]",
        discussion: """
            Applications that sign people in with a removed client id get the error SW001. Accounts and sessions stay. \
            Remove the client id from the SIWAD_APPS of every daemon first: a daemon that starts adds it again.

            Example:
              siwad clients remove com.example.old --note 'app was sold'
            """
    )

    @Argument(help: ArgumentHelp("Client ids to remove.", valueName: "client-id"), completion: .clientID)
    var clients: [String] = []
    @OptionGroup var rehearsal: RehearsalOptions
    @Flag(help: "Print one JSON object per client id.")
    var json = false
    @OptionGroup var database: DatabaseOptions

    func validate() throws {
        try requireNothing(clients.isEmpty ? "name client ids" : nil, rehearsal.advice)
    }

    func run(_ invocation: Invocation) async throws {
        let wanted = clients.map { ClientID($0) }
        let (name, note) = (try rehearsal.name(environment: invocation.environment), rehearsal.note ?? "")
        let isDryRun = rehearsal.dryRun
        let removed = try await invocation.write { session throws(PostgresError) in
            isDryRun
                ? try Clients.list(limit: .max, in: session).map(\.client).filter(wanted.contains)
                : try Clients.remove(wanted, by: name, note: note, in: session)
        }
        guard !removed.isEmpty else {
            throw CommandFailure(.nothingMatched, "no client id matches: nothing was removed")
        }
        let wouldHappen = isDryRun ? "\(counted(removed.count, "client id")) would go" : nil
        let ids = removed.map(\.rawValue)
        invocation.console.print(ids, as: "client_id", asJSON: json, "removed", wouldHappen: wouldHappen)
        let missing = Set(wanted).subtracting(removed).count
        guard missing == 0 else {
            let what = "\(missing) of \(Set(wanted).count) named \(missing == 1 ? "is" : "are") not registered"
            throw CommandFailure(.partlyFailed, "\(what): \(nextCommand("clients list")) shows the registered ones")
        }
    }
}
