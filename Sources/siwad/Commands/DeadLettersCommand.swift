import AccountStore
import WebClient
import AppleTokens
import ArgumentParser
import Basics
import Ingest
import JOSE
import Postgres
import Settings
import Terminal

struct DeadLettersCommand: ParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "dead-letters",
        abstract: "Look at notifications that could not be processed, replay or discard them.",
        discussion: """
            Apple does not send a notification again after it was accepted: its dead letter is the only copy.

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

struct DeadLettersListCommand: ListingCommand {
    static let configuration = CommandConfiguration(
        commandName: "list",
        abstract: "List dead letters, the last received first.",
        discussion: """
            Without --status, lists open letters; with numbers, letters of any status.

            Example:
              siwad dead-letters list --reason unknown-audience --app com.example.app
            """
    )

    @OptionGroup var filter: DeadLetterFilterOptions
    @OptionGroup var status: DeadLetterStatusOptions
    @OptionGroup var listing: ListingOptions

    func rows(in session: borrowing Session) throws -> Listing<KeptDeadLetter> {
        let status = status.value(default: filter.ids.all.isEmpty ? .open : nil)
        let letters = try filter.filter(in: session)
        let rows = try DeadLetters.list(letters, status: status, limit: listing.limit, in: session)
        return DeadLetterListing.list(rows)
    }
}

struct DeadLettersStatsCommand: ListingCommand {
    static let configuration = CommandConfiguration(
        commandName: "stats",
        abstract: "Count dead letters by reason, app or type.",
        discussion: "Example:\n  siwad dead-letters stats --by app --reason unknown-audience"
    )

    @OptionGroup var filter: DeadLetterFilterOptions
    @OptionGroup var status: DeadLetterStatusOptions
    @Option(help: "What to count by.")
    var by = DeadLetterGrouping.reason
    @OptionGroup var listing: ListingOptions

    func rows(in session: borrowing Session) throws -> Listing<DeadLetterCount> {
        let status = status.value(default: nil)
        let letters = try filter.filter(in: session)
        let rows = try DeadLetters.count(letters, status: status, by: by, limit: listing.limit, in: session)
        return DeadLetterListing.counts(rows, by: by)
    }
}

struct DeadLettersShowCommand: DatabaseCommand {
    static let configuration = CommandConfiguration(
        commandName: "show",
        abstract: "Show a letter's cause, the next step, and its token checked and decoded.",
        usage: "siwad dead-letters show <number> ... [<options>]",
        discussion: "Example:\n  siwad dead-letters show 17"
    )

    @OptionGroup var ids: DeadLetterIDOptions
    @Flag(help: "Print one JSON object per letter.")
    var json = false
    @OptionGroup var acceptance: AcceptanceOptions

    var database: DatabaseOptions { acceptance.database }
    var flags: [SettingKey: String] { acceptance.flags }

    func validate() throws {
        try requireNothing(ids.all.isEmpty ? "name letters by their numbers" : nil)
    }

    func run(_ invocation: Invocation) async throws {
        let ids = ids.all
        let trust = try invocation.configuration.keyTrust()
        let (records, keys) = try await invocation.read { session in
            var records: [DeadLetterRecord] = []
            for id in ids { if let record = try DeadLetters.find(id: id, in: session) { records.append(record) } }
            return (records, try SigningKeys.all(trust, in: session))
        }
        guard !records.isEmpty else {
            let what = ids.count == 1 ? "this number" : "these numbers"
            let list = nextCommand("dead-letters list")
            throw CommandFailure(.nothingMatched, "no dead letter has \(what): \(list) shows some")
        }
        let pages = try records.map {
            try DeadLetterPage($0, keys: keys, configuration: invocation.configuration, now: .now())
        }
        invocation.console.print(pages: pages, asJSON: json)
        let failure = self.ids.failure(matched: pages.count, kind: "dead letter", kinds: "dead letters")
        if let failure { throw failure }
    }
}

// MARK: - Replay

struct DeadLettersReplayCommand: DatabaseCommand {
    static let configuration = CommandConfiguration(
        commandName: "replay",
        abstract: "Process open letters again, like live notifications.",
        discussion: """
            The effects of a letter and its new status are committed together. An interrupted replay can be run again \
            and continues with the remaining letters. Two operators may replay concurrently. An event that is older \
            than the stored state changes nothing. A letter that fails again stays open with the cause. A letter that \
            is older than SIWAD_RETENTION stays open too.

            Each batch of up to 256 letters, fewer with --rate, is committed with its entry in the audit, whose count \
            is that of the letters that were replayed.

            A dry run replays up to 2,048 letters in a transaction and rolls it back, so that live notifications about \
            the same people wait only briefly. Each transaction first replays the earlier letters about its people. \
            A letter that was never verified (keys-unavailable) names no person yet: if it is in another transaction \
            than an earlier letter about the same person, the dry run does not see the effect of that letter.

            Example:
              siwad dead-letters replay --reason unknown-audience --dry-run
              siwad dead-letters replay --reason unknown-audience --rate 500 \\
                  --note 'app added to SIWAD_APPS'
            """
    )

    @OptionGroup var filter: DeadLetterFilterOptions
    @OptionGroup var rehearsal: RehearsalOptions
    @Option(parsing: .unconditional, help: "Letters per second; no limit if omitted.")
    var rate: Double?
    @Flag(help: "Accept letters that were received after their exp.")
    var acceptExpired = false
    @Flag(help: "Print one JSON object; for a dry run, one per letter.")
    var json = false
    @Option(
        parsing: .unconditional,
        help: ArgumentHelp("At most this many letters, the oldest first; all if omitted.", valueName: "count")
    )
    var limit: Int?
    @OptionGroup var acceptance: AcceptanceOptions

    var database: DatabaseOptions { acceptance.database }
    var flags: [SettingKey: String] { acceptance.flags }

    func validate() throws {
        try requireNothing(filter.advice, rehearsal.advice)
        guard limit.map({ $0 > 0 }) ?? true else { throw ValidationError("--limit must be at least 1") }
        try SimulateSendCommand.validate(rate: rate)
    }

    func run(_ invocation: Invocation) async throws {
        let (configuration, console) = (invocation.configuration, invocation.console)
        let name = try rehearsal.name(environment: invocation.environment)
        let (settings, _) = try configuration.databaseAndApps()
        // Checks the schema too: a replay uses its own connection.
        var letters = try await invocation.read { [filter] in try filter.filter(atLeast: 8, in: $0) }
        let url = try configuration.keySetURL()
        let replay = DeadLetterReplay(
            policy: try configuration.policy(),
            trust: try configuration.keyTrust(),
            retention: configuration.retention,
            fetchKeys: { try JSONWebKeySet(parsing: try await KeySetFetcher.fetchOnce(url)).keys }
        )
        letters.limit = limit
        var run = ReplayRun(letters, by: name, note: rehearsal.note ?? "", rate: rate)
        run.acceptsExpired = acceptExpired
        run.isRehearsal = rehearsal.dryRun
        let command = self
        try await Services.runInterruptibly { [run] in
            var output = ReplayOutput(command, console)
            do {
                let report = try await replay.run(run, connecting: settings) { try output.add($0, $1) }
                guard let report else {
                    throw CommandFailure(.nothingMatched, "no open dead letter matches: nothing was replayed")
                }
                // With --limit, named letters may be missing because they exceed the limit.
                let isLimited = command.limit != nil
                let missing = isLimited ? nil : command.filter.failure(matched: report.matched, status: .open)
                try output.finish(report, missing: missing)
            } catch {
                if !(error is CommandFailure) { output.interrupt() }
                throw error
            }
        }
    }
}

// MARK: - Discard and reopen

struct DeadLettersDiscardCommand: DecisionCommand {
    static let configuration = CommandConfiguration(
        commandName: "discard",
        abstract: "Mark open letters as not to be processed. They stay in the database.",
        discussion: """
            Each batch of up to 2,000 letters, fewer with --rate, is committed with its entry in the audit: an \
            interrupted run can be repeated and continues with the rest.

            Example:
              siwad dead-letters discard --app com.example.sold --note 'app sold in 2025'
            """
    )
    static let verb = DeadLetterDecision.Verb.discard
    @OptionGroup var options: DecisionOptions
}

struct DeadLettersReopenCommand: DecisionCommand {
    static let configuration = CommandConfiguration(
        commandName: "reopen",
        abstract: "Undo a discard: mark discarded letters as open.",
        discussion: "Example:\n  siwad dead-letters reopen 17 --note 'discarded by mistake'"
    )
    static let verb = DeadLetterDecision.Verb.reopen
    @OptionGroup var options: DecisionOptions
}

/// A command that changes the status of dead letters without processing them.
protocol DecisionCommand: DatabaseCommand, Sendable {
    static var verb: DeadLetterDecision.Verb { get }
    var options: DecisionOptions { get }
}

struct DecisionOptions: ParsableArguments {
    @OptionGroup var filter: DeadLetterFilterOptions
    @OptionGroup var rehearsal: RehearsalOptions
    @Option(parsing: .unconditional, help: "Letters per second; no limit if omitted.")
    var rate: Double?
    @Flag(help: "Print one JSON object; for a dry run, one per reason.")
    var json = false
    @OptionGroup var database: DatabaseOptions

    func validate() throws {
        try requireNothing(filter.advice, rehearsal.advice)
        try SimulateSendCommand.validate(rate: rate)
    }
}

extension DecisionCommand {
    var database: DatabaseOptions { options.database }
    /// `discarded` or `reopened`.
    private var participle: String { "\(Self.verb.rawValue)ed" }

    func run(_ invocation: Invocation) async throws {
        let name = try options.rehearsal.name(environment: invocation.environment)
        let letters = try await invocation.read { [filter = options.filter] in
            try filter.filter(atLeast: 8, in: $0)
        }
        let decision = DeadLetterDecision(
            Self.verb,
            letters,
            by: name,
            note: options.rehearsal.note ?? "",
            rate: options.rate
        )
        let command = self
        try await Services.runInterruptibly {
            try await invocation.withDatabase { pool in
                try await command.run(decision, on: pool, invocation.console)
            }
        }
    }

    private func run(_ decision: DeadLetterDecision, on pool: ConnectionPool, _ console: Console) async throws {
        let selection: DeadLetterSelection?
        var failure: CommandFailure?
        if options.rehearsal.dryRun {
            selection = try await decision.selection(on: pool)
            if let selection { preview(selection, console) }
        } else {
            let report = try await perform(decision, on: pool, console)
            selection = report?.selection
            failure = report.flatMap { summarize($0, console) }
        }
        let status = Self.verb.status
        guard let selection else {
            let cause = "no \(status.rawValue) dead letter matches"
            throw CommandFailure(.nothingMatched, "\(cause): nothing was \(participle)")
        }
        let missing = options.filter.failure(matched: selection.total, status: status)
        if let failure = failure?.joined(to: missing) ?? missing { throw failure }
    }

    private func perform(
        _ decision: DeadLetterDecision,
        on pool: ConnectionPool,
        _ console: Console
    ) async throws -> DeadLetterDecision.Report? {
        var progress = ProgressLine(title: Self.verb.rawValue, on: console)
        var changed = 0
        do {
            let report = try await decision.carryOut(on: pool) { report in
                changed = report.changed
                progress.advance(to: report.changed + report.refused, of: report.selection.total)
            }
            progress.end()
            return report
        } catch {
            progress.end()
            if changed > 0 {
                console.note("\(changed) \(participle) so far; the same command goes on with what is left")
            }
            throw error
        }
    }

    /// - Returns: the failure to report about letters that were not changed; nil if there are none.
    private func summarize(_ report: DeadLetterDecision.Report, _ console: Console) -> CommandFailure? {
        let counts = [
            JSONText.Member(participle, report.changed.json), .init("refused", report.refused.json),
            .init("left_alone", report.leftAlone.json),
        ]
        console.print(options.json ? JSONText.object(counts).line : "\(report.changed) \(participle)")
        let status: CommandStatus = report.changed == 0 ? .failed : .partlyFailed
        let refused = CommandFailure(
            status,
            "\(report.refused) stay discarded, as the token is open in another letter, or was erased with the person's account"
        )
        let leftAlone = CommandFailure(
            status,
            "\(report.leftAlone) were left alone, as another session changed or locked them: run the command again"
        )
        guard report.refused > 0 else { return report.leftAlone > 0 ? leftAlone : nil }
        return refused.joined(to: report.leftAlone > 0 ? leftAlone : nil)
    }

    private func preview(_ selection: DeadLetterSelection, _ console: Console) {
        let newStatus: DeadLetterStatus = Self.verb == .discard ? .discarded : .open
        let counts = selection.counts.sorted { ($1.value, $0.key.rawValue) < ($0.value, $1.key.rawValue) }
        let columns: [Column<(key: DeadLetterReason, value: Int)>] = [
            .init("reason", \.key.rawValue, "REASON"),
            .init("count", \.value, "LETTERS", .right),
            .init("would_become", { _ in newStatus.rawValue }, "WOULD BECOME"),
        ]
        if options.json {
            console.print(lines: counts.map { columns.object(of: $0).line })
        } else {
            console.print(lines: columns.table(of: counts).lines(style: console.style))
        }
        console.note("dry run: nothing was changed")
    }
}

extension CommandFailure {
    /// This failure and a further one of the same run, in one line.
    func joined(to other: CommandFailure?) -> CommandFailure {
        other.map { CommandFailure(status, "\(message); \($0.message)") } ?? self
    }
}
