import AccountStore
import AppleTokens
import ArgumentParser
import Basics
import Effects
import Postgres
import Schema
import Settings
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
    @Option(parsing: .unconditional, help: WallTime.help("Published at or after"), transform: WallTime.init(argument:))
    var since: WallTime?

    func filter(limit: Int, in session: borrowing Session) throws -> ChangeFilter {
        var filter = ChangeFilter()
        filter.types = type.map(\.rawValue)
        filter.subject = try account.sub.map { try LookupKey.subject.find($0, in: session) ?? $0 }
        filter.team = account.team
        filter.app = try account.appID(in: session)
        filter.limit = limit
        return filter
    }

    /// The options of the account, with the app in full.
    ///
    /// - Parameter filter: a result of ``filter(limit:in:)``.
    func account(with filter: ChangeFilter) -> AccountFilterOptions {
        var account = account
        account.app = filter.app
        return account
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
    @Option(parsing: .unconditional, help: WallTime.help("Published before"), transform: WallTime.init(argument:))
    var until: WallTime?
    @OptionGroup var listing: ListingOptions

    func rows(in session: borrowing Session) throws -> Listing<PublishedChange> {
        var wanted = try filter.filter(limit: listing.limit, in: session)
        wanted.since = filter.since
        wanted.until = until
        let rows = try ChangeLog.list(wanted, in: session)
        return try ChangeListing.list(rows).explained(by: filter.account(with: wanted), in: session)
    }
}

struct ChangesShowCommand: DatabaseCommand {
    static let configuration = CommandConfiguration(
        commandName: "show",
        abstract: "Show one published change, the event that receivers get, and what became of it at each endpoint.",
        usage: "siwad changes show <position> [<options>]",
        discussion: "Example:\n  siwad changes show 4711"
    )

    @Argument(help: "Its position.", transform: Int64.init(numberArgument:))
    var position: Int64
    @Flag(help: "Print one JSON object: the event and its deliveries.")
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
        let keptSince = WallTime.now() - invocation.configuration.deliveryRetention
        invocation.console.print(ChangePage(change: change, fates: fates, keptSince: keptSince), asJSON: json)
    }
}

struct ChangesSchemaCommand: Command {
    static let configuration = CommandConfiguration(
        commandName: "schema",
        abstract: "Print the JSON Schema of the events.",
        discussion: "Example:\n  siwad changes schema > siwad-events.json"
    )

    @OptionGroup var common: CommonOptions

    var needsSettings: Bool { false }

    func run(_ invocation: Invocation) async throws {
        invocation.console.print(Schema.events.hasSuffix("\n") ? String(Schema.events.dropLast()) : Schema.events)
    }
}
