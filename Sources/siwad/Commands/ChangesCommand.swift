import AccountStore
import AppleTokens
import ArgumentParser
import Basics
import Effects
import Postgres
import Schema
import Terminal

struct ChangesCommand: ParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "changes",
        abstract: "Look at the published changes of state, and follow them.",
        discussion: "Example:\n  siwad changes follow --json --from-start",
        subcommands: [
            ChangesFollowCommand.self, ChangesListCommand.self, ChangesShowCommand.self, ChangesSchemaCommand.self,
        ]
    )
}

extension ChangeEvent.Kind: ExpressibleByArgument {
    /// A type of the catalogue, also without its first part: `consent.revoked`.
    public init?(argument: String) {
        self.init(rawValue: argument.hasPrefix("siwa.") ? argument : "siwa." + argument)
    }
}

struct ChangeFilterOptions: ParsableArguments {
    @OptionGroup var account: AccountFilterOptions
    @Option(
        parsing: .unconditionalSingleValue,
        help: ArgumentHelp("Type, such as consent.revoked; repeatable.", valueName: "type")
    )
    var type: [ChangeEvent.Kind] = []
    @Option(help: WallTime.help("Published at or after"), transform: WallTime.init(argument:))
    var since: WallTime?

    func filter(limit: Int, in session: borrowing Session) throws -> ChangeFilter {
        var filter = ChangeFilter()
        filter.types = type.map(\.rawValue)
        filter.subject = try account.sub.map { try LookupKey.subject.find($0, in: session) ?? $0 }
        filter.team = account.team
        filter.app = account.app
        filter.limit = limit
        return filter
    }
}

struct ChangesListCommand: ListingCommand {
    static let configuration = CommandConfiguration(
        commandName: "list",
        abstract: "List published changes, the latest first.",
        usage: "siwad changes list [<options>]",
        discussion: """
            --app also finds the changes of its team that another app group reported, such as deletions.

            Example:
              siwad changes list --type account.deleted --since yesterday
              siwad changes list --sub 000768 --json
            """
    )

    @OptionGroup var filter: ChangeFilterOptions
    @Option(help: WallTime.help("Published before"), transform: WallTime.init(argument:))
    var until: WallTime?
    @OptionGroup var listing: ListingOptions

    func rows(in session: borrowing Session) throws -> Listing<PublishedChange> {
        var wanted = try filter.filter(limit: listing.limit, in: session)
        wanted.since = filter.since
        wanted.until = until
        let rows = try ChangeLog.list(wanted, in: session)
        return try ChangeListing.list(rows).explained(by: filter.account, in: session)
    }
}

struct ChangesShowCommand: DatabaseCommand {
    static let configuration = CommandConfiguration(
        commandName: "show",
        abstract: "Show one published change, the event that receivers get, and what became of it at each endpoint.",
        usage: "siwad changes show <position> [<options>]",
        discussion: "Example:\n  siwad changes show 4711"
    )

    @Argument(help: "Its position.")
    var position: Int64
    @Flag(help: "Print the event as one JSON object.")
    var json = false
    @OptionGroup var database: DatabaseOptions

    func run(_ invocation: Invocation) async throws {
        let position = position
        let (change, end, fates) = try await invocation.read { session in
            let change = try ChangeLog.find(position: position, in: session)
            let fates = try change.map { try DeliveryRecords.fates(of: $0, in: session) } ?? []
            return (change, try ChangeLog.end(in: session), fates)
        }
        guard let change else {
            let last = end == 0 ? "nothing is published" : "the last one is \(end)"
            throw CommandFailure(.nothingMatched, "no change has this position, \(last)")
        }
        invocation.console.print(ChangePage(change: change, fates: fates), asJSON: json)
    }
}

struct ChangePage: CommandOutput {
    let change: PublishedChange
    let fates: [DeliveryFate]

    func lines(style: OutputStyle) -> [String] {
        let cause = change.notificationID.map { "notification \($0)" }
        let session = change.sessionID.map { "an operator, who ended session \($0)" }
        let facts = [
            ("position", "\(change.position)"), ("type", change.type), ("sub", change.subject.rawValue),
            ("team", change.team.rawValue), ("app", change.app.rawValue),
            ("concerns", change.scope == "app" ? "this app group" : "all apps of the team"),
            ("change", "\(change.facet) \(change.fromState) → \(change.toState)"),
            ("sessions", "\(change.sessionsEnded) ended"), ("because of", cause ?? session ?? "a sign-in"),
            ("happened", "\(change.eventTime.secondText) UTC"), ("recorded", "\(change.recordedAt.secondText) UTC"),
            ("published", "\(change.publishedAt.secondText) UTC"), ("event", ChangeEvent(change).envelope.line),
        ]
        let deliveries = fates.map { ("endpoint", "\($0.endpoint.name): \($0.sentence(change))") }
        return (facts + deliveries).map { name, text in name.padding(to: 12) + VisibleText.visible(text) }
    }

    var json: [JSONText] { [ChangeEvent(change).envelope] }
}

extension DeliveryFate {
    fileprivate func sentence(_ change: PublishedChange) -> String {
        guard let delivery else {
            if !isWanted { return "filtered out" }
            return endpoint.createdAt > change.publishedAt
                ? "none, as the endpoint was added later"
                : "settled, and deleted after SIWAD_DELIVERY_RETENTION"
        }
        let reason = delivery.reason ?? ""
        return switch delivery.status {
        case .pending: delivery.isClaimed ? "in its first attempt" : "pending"
        case .retry: "in retry: \(reason)" + (delivery.nextAttemptAt.map { ", next at \($0.secondText) UTC" } ?? "")
        case .dead: "dead: \(reason)"
        case .discarded: "discarded by \(delivery.resolvedBy ?? "")" + (delivery.note.map { ": \($0)" } ?? "")
        case .delivered: "delivered" + (delivery.resolvedAt.map { ", \($0.secondText) UTC" } ?? "")
        }
    }
}

struct ChangesSchemaCommand: Command {
    static let configuration = CommandConfiguration(
        commandName: "schema",
        abstract: "Print the JSON Schema of the events.",
        discussion: "Example:\n  siwad changes schema > siwad-events.json"
    )

    @OptionGroup var common: CommonOptions

    func run(_ invocation: Invocation) async throws {
        invocation.console.print(Schema.events.hasSuffix("\n") ? String(Schema.events.dropLast()) : Schema.events)
    }
}
