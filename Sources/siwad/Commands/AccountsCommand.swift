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
    fileprivate static let personHelp = "A sub, the beginning of only one, an address, or a session id."

    static let configuration = CommandConfiguration(
        commandName: "show",
        abstract: "Show everything about one person: is the person signed in, and why not.",
        usage: "siwad accounts show <person> [<options>]",
        discussion: """
            The first lines say in a sentence whether the person is signed in and why. Then follow the state in each \
            app group, the notification or sign-in that set each fact, the mail settings, the latest sessions and \
            changes, and the open dead letters about the person. An address that was recorded with capital \
            letters is found only with the same ones.

            Example:
              siwad accounts show 000768.6166f031167141e695698239959f591a.1521
              siwad accounts show 000768.6166f03
              siwad accounts show k7x2m9@privaterelay.appleid.com
            """
    )

    @Argument(help: ArgumentHelp(stringLiteral: Self.personHelp))
    var person: String
    @Option(help: ArgumentHelp("Only in this developer team.", valueName: "team-id"), completion: .teamID)
    var team: String?
    @Flag(help: "Print one JSON object per person and team.")
    var json = false
    @Flag(help: "Do not cut values to the width of the terminal.")
    var wide = false
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
        let (person, team, limit) = (person, team, limit)
        let pages = try await invocation.read { session in
            var pages: [AccountPage] = []
            for sub in try LookupKey.people(person, in: session) {
                pages += try AccountPage.pages(subject: sub, team: team, limit: limit, in: session)
            }
            return pages
        }
        guard !pages.isEmpty else {
            throw CommandFailure(.nothingMatched, "the person is not in this team: leave out --team")
        }
        for (index, page) in pages.enumerated() {
            if index > 0, !json { invocation.console.print() }
            invocation.console.print(page, asJSON: json, isWide: wide)
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
        usage: "siwad accounts list [<person>] [<options>]",
        discussion: """
            Example:
              siwad accounts list --state revoked --json
              siwad accounts list k7x2m9@privaterelay.appleid.com --wide
            """
    )

    @Argument(help: "\(AccountsShowCommand.personHelp) All people if omitted.")
    var person: String?
    @OptionGroup var filter: AccountFilterOptions
    @Option(help: "State of the account.")
    var state: State?
    @OptionGroup var listing: ListingOptions

    func validate() throws { try filter.validate(person: person) }

    func rows(in session: borrowing Session) throws -> Listing<AccountState> {
        var accounts = try filter.accounts(person: person, limit: listing.limit, in: session)
        accounts.state = state?.rawValue
        let rows = try Accounts.states(accounts, in: session)
        return try AccountListings.states(rows).explained(by: filter, in: session)
    }
}

struct AccountsHistoryCommand: ListingCommand {
    static let configuration = CommandConfiguration(
        commandName: "history",
        abstract: "List changes of state, the latest last.",
        usage: "siwad accounts history [<person>] [<options>]",
        discussion: "Example:\n  siwad accounts history 000768.6166f031167141e695698239959f591a.1521"
    )

    @Argument(help: "\(AccountsShowCommand.personHelp) All people if omitted.")
    var person: String?
    @OptionGroup var filter: AccountFilterOptions
    @OptionGroup var listing: ListingOptions

    func validate() throws { try filter.validate(person: person) }

    func rows(in session: borrowing Session) throws -> Listing<AccountChange> {
        let accounts = try filter.accounts(person: person, limit: listing.limit, in: session)
        let rows = try Accounts.history(accounts, in: session)
        return try AccountListings.history(rows).explained(by: filter, in: session)
    }
}
