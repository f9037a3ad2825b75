import AccountStore
import AppleTokens
import ArgumentParser
import Postgres
import Settings
import Terminal

/// `siwad dead-letters`
struct DeadLettersCommand: ParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "dead-letters",
        abstract: "Look at notifications that could not be processed, replay or discard them.",
        discussion: """
            Apple sends nothing again: what is here exists nowhere else.

            Example:
              siwad dead-letters stats
              siwad dead-letters show 17
              siwad dead-letters replay --reason unknown-audience --dry-run
              siwad dead-letters replay --reason unknown-audience \\
                  --note 'app added to SIWAD_APPS'
            """,
        subcommands: [
            DeadLettersListCommand.self, DeadLettersShowCommand.self, DeadLettersStatsCommand.self,
            DeadLettersReplayCommand.self, DeadLettersDiscardCommand.self, DeadLettersReopenCommand.self,
        ]
    )
}

/// `siwad dead-letters list`
struct DeadLettersListCommand: Command {
    static let configuration = CommandConfiguration(
        commandName: "list",
        abstract: "List dead letters, the one received last first.",
        discussion: """
            Lists open letters, and with --id letters of any status, unless --status says otherwise.

            Example:
              siwad dead-letters list --reason unknown-audience --app com.example.app
            """
    )

    @OptionGroup var filter: DeadLetterFilterOptions
    @OptionGroup var status: DeadLetterStatusOptions
    @OptionGroup var listing: ListingOptions
    @OptionGroup var database: DatabaseOptions
    @OptionGroup var common: CommonOptions

    var flags: [SettingKey: String] { database.flags }

    func run(_ invocation: Invocation) async throws {
        let (filter, limit) = (filter.filter, listing.limit)
        let status = status.value(default: filter.ids.isEmpty ? .open : nil)
        let rows = try await Database.with(invocation.configuration) { database in
            try await database.read { session throws(PostgresError) in
                try DeadLetters.list(filter, status: status, limit: limit, in: session)
            }
        }
        try DeadLetterListing.list(rows).print(listing, to: invocation.console)
    }
}

/// `siwad dead-letters stats`
struct DeadLettersStatsCommand: Command {
    static let configuration = CommandConfiguration(
        commandName: "stats",
        abstract: "Count dead letters by reason, app or type.",
        discussion: "Example:\n  siwad dead-letters stats --by app --reason unknown-audience"
    )

    @OptionGroup var filter: DeadLetterFilterOptions
    @OptionGroup var status: DeadLetterStatusOptions
    @Option(name: .long, help: "reason, app or type.")
    var by = DeadLetterGrouping.reason.rawValue
    @OptionGroup var listing: ListingOptions
    @OptionGroup var database: DatabaseOptions
    @OptionGroup var common: CommonOptions

    var flags: [SettingKey: String] { database.flags }

    /// Refuses what letters can't be counted by.
    func validate() throws {
        try AccountFilterOptions.check(by, "--by", DeadLetterGrouping.allCases.map(\.rawValue))
    }

    func run(_ invocation: Invocation) async throws {
        let (filter, limit, status) = (filter.filter, listing.limit, status.value(default: nil))
        let grouping = DeadLetterGrouping(rawValue: by) ?? .reason
        let rows = try await Database.with(invocation.configuration) { database in
            try await database.read { session throws(PostgresError) in
                try DeadLetters.count(filter, status: status, by: grouping, limit: limit, in: session)
            }
        }
        try DeadLetterListing.counts(rows, by: grouping).print(listing, to: invocation.console)
    }
}

/// `siwad dead-letters show`
struct DeadLettersShowCommand: Command {
    static let configuration = CommandConfiguration(
        commandName: "show",
        abstract: "What happened to a letter and what to do about it, its token checked and decoded.",
        usage: "siwad dead-letters show <number> [<options>]",
        discussion: "Example:\n  siwad dead-letters show 17"
    )

    @Argument(help: ArgumentHelp("The letter's number.", valueName: "number"))
    var id: Int64
    @Flag(name: .long, help: "One JSON object.")
    var json = false
    @OptionGroup var acceptance: AcceptanceOptions
    @OptionGroup var database: DatabaseOptions
    @OptionGroup var common: CommonOptions

    var flags: [SettingKey: String] { database.flags.merging(acceptance.flags) { first, _ in first } }

    func run(_ invocation: Invocation) async throws {
        let id = id
        let trust = try invocation.configuration.keyTrust()
        let found = try await Database.with(invocation.configuration) { database in
            try await database.read { session throws(PostgresError) in
                (try DeadLetters.find(id: id, in: session), try SigningKeys.all(trust, in: session))
            }
        }
        guard let record = found.0 else {
            throw CommandFailure(.nothingMatched, "no dead letter of this number: siwad dead-letters list shows some")
        }
        let page = try DeadLetterPage(
            record,
            keys: found.1,
            configuration: invocation.configuration,
            now: .now()
        )
        if json {
            invocation.console.print(page.json.line)
        } else {
            invocation.console.print(lines: page.lines(style: invocation.console.style))
        }
    }
}
