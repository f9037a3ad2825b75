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
            The actions are: \(OperatorAction.commands.joined(separator: ", ")). The operator siwad is the daemon.

            COUNT is the number of rows that an action changed. A long run has an entry for each batch that it \
            committed: the sum of their counts is what it did, also if it was interrupted.

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
        completion: .custom { _, _, _ in OperatorAction.commands }
    )
    var action: String?
    @Option(parsing: .unconditional, help: WallTime.help("Done at or after"), transform: WallTime.init(argument:))
    var since: WallTime?
    @Option(parsing: .unconditional, help: WallTime.help("Done before"), transform: WallTime.init(argument:))
    var until: WallTime?
    @OptionGroup var listing: ListingOptions

    func validate() throws {
        guard action.map(OperatorAction.commands.contains) ?? true else {
            throw ValidationError(
                "--action: no action has this name: write one of \(OperatorAction.commands.joined(separator: ", "))"
            )
        }
    }

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
        abstract: "Show actions of operators.",
        usage: "siwad audit show <number> ... [<options>]",
        discussion: "Example:\n  siwad audit show 17"
    )

    @Argument(help: ArgumentHelp("Numbers of actions.", valueName: "number"), transform: Int64.init(numberArgument:))
    var numbers: [Int64] = []
    @Option(
        parsing: .unconditionalSingleValue,
        help: ArgumentHelp("Number of an action; repeatable.", valueName: "number"),
        transform: Int64.init(numberArgument:)
    )
    var id: [Int64] = []
    @Flag(help: "Print one JSON object per action.")
    var json = false
    @OptionGroup var database: DatabaseOptions

    func validate() throws {
        try requireNothing(numbers.isEmpty && id.isEmpty ? "name actions by their numbers" : nil)
    }

    func run(_ invocation: Invocation) async throws {
        let ids = (numbers + id).uniqued()
        var filter = ActionFilter()
        filter.ids = ids
        filter.limit = ids.count
        let found = try await invocation.read { [filter] in try OperatorActions.list(filter, in: $0) }
        let list = nextCommand("audit list")
        guard !found.isEmpty else {
            let what = ids.count == 1 ? "this number" : "these numbers"
            throw CommandFailure(.nothingMatched, "no action has \(what): \(list) shows some")
        }
        let pages = ids.compactMap { id in found.first { $0.id == id }.map(ActionPage.init) }
        invocation.console.print(pages: pages, asJSON: json)
        let missing = ids.filter { id in !found.contains { $0.id == id } }
        guard missing.isEmpty else {
            throw CommandFailure(missing: missing.map(String.init), of: ids.count, list: list)
        }
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
