import AccountStore
import AppleTokens
import ArgumentParser
import Basics
import JOSE
import Postgres
import Terminal

struct NotificationsCommand: ParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "notifications",
        abstract: "Look at the notifications that Apple sent.",
        discussion: "Example:\n  siwad notifications list --type account-deleted --since 2026-01-01",
        subcommands: [NotificationsListCommand.self, NotificationsShowCommand.self]
    )
}

struct NotificationsListCommand: ListingCommand {
    enum Outcome: String, CaseIterable, ExpressibleByArgument {
        case applied, superseded, unchanged
    }

    enum Source: String, CaseIterable, ExpressibleByArgument {
        case endpoint, spool, replay
    }

    static let configuration = CommandConfiguration(
        commandName: "list",
        abstract: "List notifications, the last received first.",
        discussion: """
            --sub and --jti use an index. The other filters scan the notifications received between --since and \
            --until, the newest first, until --limit is reached: in a large database, add --since.

            Example:
              siwad notifications list --outcome superseded --since 2026-01-01 --json
            """
    )

    @OptionGroup var filter: AccountFilterOptions
    @Option(help: "Event type; either spelling finds a deletion.")
    var type: String?
    @Option(help: "What became of it.")
    var outcome: Outcome?
    @Option(help: "Where it came from.")
    var source: Source?
    @Option(parsing: .unconditional, help: "Its identifier.")
    var jti: String?
    @Option(help: WallTime.help("Received at or after"), transform: WallTime.init(argument:))
    var since: WallTime?
    @Option(help: WallTime.help("Received before"), transform: WallTime.init(argument:))
    var until: WallTime?
    @OptionGroup var listing: ListingOptions

    func rows(in session: borrowing Session) throws(PostgresError) -> Listing<LoggedNotification> {
        var wanted = NotificationFilter()
        wanted.id = jti
        wanted.subject = filter.sub
        wanted.team = filter.team
        wanted.app = filter.app
        wanted.eventType = type
        wanted.outcome = outcome?.rawValue
        wanted.source = source?.rawValue
        wanted.since = since
        wanted.until = until
        wanted.limit = listing.limit
        return NotificationListing.list(try NotificationLog.list(wanted, in: session))
    }
}

struct NotificationsShowCommand: DatabaseCommand {
    static let configuration = CommandConfiguration(
        commandName: "show",
        abstract: "Show everything about one notification, including its signed token.",
        usage: "siwad notifications show <id> [<options>]",
        discussion: """
            Write -- before a jti that starts with a hyphen.

            Example:
              siwad notifications show 4jH5Tn0aSyGv1cbXqRkPuQ
              siwad notifications show -- -Nx_UIPpS8QtCbcQfa-sAg
            """
    )

    @Argument(help: "The jti.")
    var id: String
    @Flag(help: "Print one JSON object.")
    var json = false
    @OptionGroup var database: DatabaseOptions

    func run(_ invocation: Invocation) async throws {
        let id = id
        let found = try await invocation.read { session throws(PostgresError) in
            try NotificationLog.find(id: id, in: session)
        }
        guard !found.isEmpty else {
            throw CommandFailure(.nothingMatched, "no notification has this jti: siwad notifications list shows some")
        }
        for notification in found {
            invocation.console.print(NotificationPage(notification: notification), asJSON: json)
        }
    }
}

struct NotificationPage: CommandOutput {
    let notification: LoggedNotification

    func lines(style: OutputStyle) -> [String] {
        let row = notification
        let outcome =
            switch row.outcome {
            case "applied": "applied: it changed what is known of this person"
            case "superseded": "superseded: something newer was known already"
            case "unchanged": "unchanged: it said what was known already"
            default: row.outcome
            }
        let absent = row.isTokenHidden ? "hidden from this database role" : "erased"
        let facts = [
            ("jti", row.id), ("type", row.eventType), ("sub", row.subject.rawValue), ("team", row.team.rawValue),
            ("app", row.app.rawValue), ("happened", "\(row.eventTime.secondText) UTC"),
            ("issued", "\(row.issuedAt.secondText) UTC"),
            ("received", "\(row.receivedAt.secondText) UTC, by \(row.source)"),
            ("outcome", outcome), ("sessions", "\(row.sessionsEnded) ended"), ("key", row.verifiedKeyID),
            ("claims", claims ?? absent), ("jws", row.token ?? absent),
        ]
        return facts.map { name, text in name.padding(to: 10) + VisibleText.visible(text) }
    }

    var json: [JSONText] {
        [.object(NotificationListing.columns.members(of: notification) + [.init("jws", notification.token.json)])]
    }

    private var claims: String? {
        // The token was verified before it was stored. If it can't be parsed, the page still shows the token itself.
        guard let token = notification.token, let jws = try? CompactJWS(parsing: Array(token.utf8)) else { return nil }
        return String(decoding: jws.payload, as: UTF8.self)
    }
}
