import AccountStore
import AppleTokens
import ArgumentParser
import Basics
import Postgres
import Terminal

struct TokensCommand: ParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "tokens",
        abstract: "Look at Apple's refresh tokens.",
        discussion: """
            There is one for each person and client id, of the latest sign-in that traded a code. The tokens are stored \
            encrypted, and no command prints one.

            Example:
              siwad tokens list --state unreadable
              siwad tokens show 001234.abcd
            """,
        subcommands: [TokensListCommand.self, TokensShowCommand.self]
    )
}

struct TokensListCommand: ListingCommand {
    static let configuration = CommandConfiguration(
        commandName: "list",
        abstract: "List refresh tokens, the latest people first.",
        usage: "siwad tokens list [<options>]",
        discussion: "Example:\n  siwad tokens list --client com.example.app --state refused"
    )

    @OptionGroup var filter: AccountFilterOptions
    @Option(help: ArgumentHelp("Client id that signed in.", valueName: "client-id"), completion: .clientID)
    var client: String?
    @Option(help: "State of the tokens.")
    var state: RefreshTokenRecord.State?
    @Option(
        parsing: .unconditional,
        help: ArgumentHelp("Key of SIWAD_SEALING_KEYS that seals them.", valueName: "name")
    )
    var key: String?
    @OptionGroup var listing: ListingOptions

    func rows(in session: borrowing Session) throws -> Listing<RefreshTokenRecord> {
        var tokens = RefreshTokenFilter()
        tokens.subjects = try filter.subject(in: session).map { [$0] }
        tokens.team = filter.team
        tokens.app = try filter.appID(in: session)
        tokens.client = client
        tokens.state = state
        tokens.keyName = key
        let rows = try RefreshTokens.list(tokens, limit: listing.limit, in: session)
        return try TokenListing.list(rows).explained(by: filter, in: session)
    }
}

struct TokensShowCommand: DatabaseCommand {
    static let configuration = CommandConfiguration(
        commandName: "show",
        abstract: "Show the refresh tokens of a person: of which sign-in, and what Apple said of them.",
        usage: "siwad tokens show <person> [<options>]",
        discussion: "Example:\n  siwad tokens show 001234.abcd"
    )

    @Argument(help: "A sub, a session id, the beginning of one, or an address.")
    var person: String
    @Flag(help: "Print one JSON object for each token.")
    var json = false
    @OptionGroup var database: DatabaseOptions

    func run(_ invocation: Invocation) async throws {
        let person = person
        let pages = try await invocation.read { session in
            var filter = RefreshTokenFilter()
            filter.subjects = try LookupKey.people(person, in: session)
            return try RefreshTokens.list(filter, limit: .max, in: session).map(TokenPage.init)
        }
        guard !pages.isEmpty else {
            let cause = "there is no refresh token of this person: no sign-in traded a code"
            throw CommandFailure(.nothingMatched, "\(cause), or the consent was revoked since")
        }
        invocation.console.print(pages: pages, asJSON: json)
    }
}

extension RefreshTokenRecord.State: ExpressibleByArgument {}
