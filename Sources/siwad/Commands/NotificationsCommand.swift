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

struct NotificationFilterOptions: ParsableArguments {
    enum Outcome: String, CaseIterable, ExpressibleByArgument {
        case applied, superseded, unchanged
    }

    enum Source: String, CaseIterable, ExpressibleByArgument {
        case endpoint, spool, replay
    }

    @OptionGroup var account: AccountFilterOptions
    @Option(help: "Event type; either spelling finds a deletion.", completion: .eventType)
    var type: String?
    @Option(help: "What became of it.")
    var outcome: Outcome?
    @Option(help: "Where it came from.")
    var source: Source?
    @Option(parsing: .unconditional, help: "Its identifier, or the beginning of only one.")
    var jti: String?
    @Option(parsing: .unconditional, help: WallTime.help("Received at or after"), transform: WallTime.init(argument:))
    var since: WallTime?

    /// The filter with the person and the notification that the options name. An id that is not stored keeps its text.
    func filter(limit: Int, in session: borrowing Session) throws -> NotificationFilter {
        var filter = NotificationFilter()
        filter.id = try jti.map { try LookupKey.notification.find($0, in: session) ?? $0 }
        filter.subject = try account.sub.map { try LookupKey.subject.find($0, in: session) ?? $0 }
        filter.team = account.team
        filter.app = try account.appID(in: session)
        filter.eventType = try type.map { try unabbreviated($0, among: AccountEvent.Kind.allCases.map(\.rawValue)) }
        filter.outcome = outcome?.rawValue
        filter.source = source?.rawValue
        filter.since = since
        filter.limit = limit
        return filter
    }

    func validate() throws {
        guard let type else { return }
        let types = AccountEvent.Kind.allCases.map(\.rawValue)
        let word: String
        do throws(CommandFailure) {
            word = try unabbreviated(type, among: types)
        } catch {
            throw ValidationError("--type: \(error)")
        }
        // A list would be empty, as if Apple had sent none.
        guard AccountEvent.Kind(appleType: word) != nil else {
            let letters = "siwad dead-letters list shows notifications of other types"
            let names = types.joined(separator: ", ")
            throw ValidationError("--type: no notification has this type: write one of \(names); \(letters)")
        }
    }
}

struct NotificationsListCommand: ListingCommand {
    static let configuration = CommandConfiguration(
        commandName: "list",
        abstract: "List notifications, the last received first.",
        usage: "siwad notifications list [<options>]",
        discussion: """
            --sub and --jti use an index. The other filters scan the notifications received between --since and \
            --until, the newest first, until --limit is reached: in a large database, add --since.

            With --follow, as siwad tail, lists the last received last, then each new one within a second or two, \
            until Ctrl-C.

            Example:
              siwad notifications list --outcome superseded --since yesterday --json
              siwad notifications list --follow --app com.example.app
            """
    )

    @OptionGroup var filter: NotificationFilterOptions
    @Option(parsing: .unconditional, help: WallTime.help("Received before"), transform: WallTime.init(argument:))
    var until: WallTime?
    @Flag(help: "Continue with each new notification.")
    var follow = false
    @OptionGroup var listing: ListingOptions

    func validate() throws {
        guard !follow || until == nil else { throw ValidationError("--follow and --until exclude each other") }
    }

    func rows(in session: borrowing Session) throws -> Listing<LoggedNotification> {
        var wanted = try filter.filter(limit: listing.limit, in: session)
        wanted.until = until
        let rows = try NotificationLog.list(wanted, in: session)
        return try NotificationListing.list(rows).explained(by: filter.account, in: session)
    }

    func run(_ invocation: Invocation) async throws {
        guard follow else { return try await printRows(invocation) }
        try await NotificationTail(options: filter, listing: listing).run(invocation)
    }
}

struct NotificationsShowCommand: DatabaseCommand {
    static let configuration = CommandConfiguration(
        commandName: "show",
        abstract: "Show everything about one notification, including its signed token.",
        usage: "siwad notifications show <id> ... [<options>]",
        discussion: """
            Write -- or --id before a jti that starts with a hyphen.

            Example:
              siwad notifications show 4jH5Tn0aSyGv1cbXqRkPuQ
              siwad notifications show 4jH5Tn0a
              siwad notifications show -- -Nx_UIPpS8QtCbcQfa-sAg
            """
    )

    @Argument(help: ArgumentHelp("The jtis, or the beginning of only one each.", valueName: "id"))
    var ids: [String] = []
    @Option(parsing: .unconditionalSingleValue, help: ArgumentHelp("A jti; repeatable.", valueName: "jti"))
    var id: [String] = []
    @Flag(help: "Print one JSON object per notification.")
    var json = false
    @OptionGroup var database: DatabaseOptions

    func validate() throws {
        try requireNothing(ids.isEmpty && id.isEmpty ? "name notifications by their jti" : nil)
    }

    func run(_ invocation: Invocation) async throws {
        let ids = (ids + id).uniqued()
        let (found, missing) = try await invocation.read { session in
            var found: [[LoggedNotification]] = []
            for id in ids {
                let id = try LookupKey.notification.find(id, in: session) ?? id
                found.append(try NotificationLog.find(id: id, in: session))
            }
            return (found.filter { !$0.isEmpty }, zip(ids, found).filter { $1.isEmpty }.map(\.0))
        }
        let list = nextCommand("notifications list")
        guard !found.isEmpty else {
            let what = ids.count == 1 ? "this jti" : "these jtis"
            throw CommandFailure(.nothingMatched, "no notification has \(what): \(list) shows some")
        }
        invocation.console.print(pages: found.joined().map(NotificationPage.init), asJSON: json)
        guard missing.isEmpty else { throw CommandFailure(missing: missing, of: ids.count, list: list) }
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
