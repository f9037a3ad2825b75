import AccountStore
import ArgumentParser
import Basics
import Postgres
import Terminal

struct AuditCommand: ParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "audit",
        abstract: "Look at what operators did: who, when, why, and to how many.",
        discussion: "Example:\n  siwad audit list --action 'sessions end' --operator kim",
        subcommands: [AuditListCommand.self, AuditShowCommand.self]
    )
}

struct AuditListCommand: ListingCommand {
    static let configuration = CommandConfiguration(
        commandName: "list",
        abstract: "List the actions of operators, the latest first.",
        usage: "siwad audit list [<options>]",
        discussion: """
            The actions are: sessions end, clients remove, sealing rotate, dead-letters replay, dead-letters discard and \
            dead-letters reopen. The operator siwad is the daemon.

            Example:
              siwad audit list --action 'sessions end' --operator kim --since 2026-01-01
              siwad audit list --json
            """
    )

    @Option(name: .customLong("operator"), help: ArgumentHelp("Who did it.", valueName: "name"))
    var operatorName: String?
    @Option(
        help: ArgumentHelp("What was done, such as 'sessions end'.", valueName: "action"),
        // Not a list: the script for fish splits its elements at blanks.
        completion: .custom { _, _, _ in
            [
                "sessions end", "clients remove", "sealing rotate", "dead-letters replay", "dead-letters discard",
                "dead-letters reopen",
            ]
        }
    )
    var action: String?
    @Option(parsing: .unconditional, help: WallTime.help("Done at or after"), transform: WallTime.init(argument:))
    var since: WallTime?
    @Option(parsing: .unconditional, help: WallTime.help("Done before"), transform: WallTime.init(argument:))
    var until: WallTime?
    @OptionGroup var listing: ListingOptions

    func rows(in session: borrowing Session) throws -> Listing<RecordedAction> {
        var filter = ActionFilter()
        filter.operatorName = operatorName
        filter.action = action
        filter.since = since
        filter.until = until
        filter.limit = listing.limit
        return AuditListing.list(try OperatorActions.list(filter, in: session))
    }
}

struct AuditShowCommand: DatabaseCommand {
    static let configuration = CommandConfiguration(
        commandName: "show",
        abstract: "Show one action of an operator.",
        usage: "siwad audit show <number> [<options>]",
        discussion: "Example:\n  siwad audit show 17"
    )

    @Argument(help: ArgumentHelp("The action's number.", valueName: "number"))
    var id: Int64
    @Flag(help: "Print one JSON object.")
    var json = false
    @OptionGroup var database: DatabaseOptions

    func run(_ invocation: Invocation) async throws {
        var filter = ActionFilter()
        filter.id = id
        let found = try await invocation.read { [filter] in try OperatorActions.list(filter, in: $0) }
        guard let action = found.first else {
            throw CommandFailure(.nothingMatched, "no action has this number: \(nextCommand("audit list")) shows some")
        }
        invocation.console.print(ActionPage(action: action), asJSON: json)
    }
}

private struct ActionPage: CommandOutput {
    let action: RecordedAction

    func lines(style: OutputStyle) -> [String] {
        let facts = [
            ("time", "\(action.recordedAt.secondText) UTC"),
            ("operator", "\(action.operatorName) (database role \(action.databaseRole))"), ("target", action.target),
            ("count", "\(action.affected)"), ("note", action.note ?? "none"),
        ]
        let title = VisibleText.visible("action \(action.id): \(action.action)")
        return [style.painted(title, .bold)] + style.facts(facts, nameWidth: 10)
    }

    var json: [JSONText] { [AuditListing.columns.object(of: action)] }
}
