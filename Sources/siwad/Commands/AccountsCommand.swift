import AccountStore
import AppleTokens
import ArgumentParser
import Postgres
import Terminal

struct AccountsCommand: ParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "accounts",
        abstract: "Look at people: their states, and the events that set them.",
        discussion: "Example:\n  siwad accounts show 000768.6166f031167141e695698239959f591a.1521",
        subcommands: [AccountsShowCommand.self, AccountsListCommand.self, AccountsHistoryCommand.self]
    )
}

struct AccountsShowCommand: DatabaseCommand {
    static let configuration = CommandConfiguration(
        commandName: "show",
        abstract: "Show everything about one person: is the person signed in, and why not.",
        usage: "siwad accounts show <sub> [<options>]",
        discussion: """
            The first lines say in a sentence whether the person is signed in and why. Then follow the state in each \
            app group, the notification or sign-in that set each fact, the mail settings, the latest sessions and \
            changes, and the open dead letters about the person.

            Example:
              siwad accounts show 000768.6166f031167141e695698239959f591a.1521
            """
    )

    @Argument(help: "Apple's identifier of the person.")
    var sub: String
    @Option(help: ArgumentHelp("Only in this developer team.", valueName: "team-id"))
    var team: String?
    @Flag(help: "Print one JSON object per team.")
    var json = false
    @Option(
        parsing: .unconditional,
        help: ArgumentHelp("At most this many sessions, changes and letters each.", valueName: "count")
    )
    var limit = 10
    @OptionGroup var database: DatabaseOptions

    func validate() throws {
        guard limit > 0 else { throw ValidationError("--limit must be at least 1") }
    }

    func run(_ invocation: Invocation) async throws {
        let (sub, team, limit) = (sub, team, limit)
        let pages = try await invocation.read { session throws(PostgresError) in
            try AccountPage.pages(subject: sub, team: team, limit: limit, in: session)
        }
        guard !pages.isEmpty else {
            let list = nextCommand("accounts list")
            throw CommandFailure(.nothingMatched, "no person has this sub: \(list) shows all people")
        }
        for (index, page) in pages.enumerated() {
            if index > 0, !json { invocation.console.print() }
            invocation.console.print(page, asJSON: json)
        }
    }
}

struct AccountsListCommand: ListingCommand {
    enum State: String, CaseIterable, ExpressibleByArgument {
        case authorized, revoked, deleted, unknown
    }

    static let configuration = CommandConfiguration(
        commandName: "list",
        abstract: "List people and their state in each app group, the latest first.",
        usage: "siwad accounts list [<options>]",
        discussion: "Example:\n  siwad accounts list --state revoked --json"
    )

    @OptionGroup var filter: AccountFilterOptions
    @Option(help: "State of the account.")
    var state: State?
    @OptionGroup var listing: ListingOptions

    func rows(in session: borrowing Session) throws(PostgresError) -> Listing<AccountState> {
        let filter = AccountFilter(
            subject: filter.sub,
            team: filter.team,
            app: filter.app,
            state: state?.rawValue,
            limit: listing.limit
        )
        return AccountListings.states(try Accounts.states(filter, in: session))
    }
}

struct AccountsHistoryCommand: ListingCommand {
    static let configuration = CommandConfiguration(
        commandName: "history",
        abstract: "List changes of state, the latest last.",
        usage: "siwad accounts history [<person>] [<options>]",
        discussion: "Example:\n  siwad accounts history 000768.6166f031167141e695698239959f591a.1521"
    )

    @Argument(help: "Apple's identifier of the person; all people if omitted.")
    var person: String?
    @OptionGroup var filter: AccountFilterOptions
    @OptionGroup var listing: ListingOptions

    func validate() throws {
        guard person == nil || filter.sub == nil else {
            throw ValidationError("name the person once: as the argument, or with --sub")
        }
    }

    func rows(in session: borrowing Session) throws(PostgresError) -> Listing<AccountChange> {
        let (sub, limit) = (person ?? filter.sub, listing.limit)
        let filter = AccountFilter(subject: sub, team: filter.team, app: filter.app, limit: limit)
        return AccountListings.history(try Accounts.history(filter, in: session))
    }
}
