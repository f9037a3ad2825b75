import AccountStore
import AppleTokens
import Ingest
import Postgres
import Terminal

/// Carries out a decision about dead letters and says what it did.
struct DecisionOutput {
    private let verb: DeadLetterDecision.Verb
    private let json: Bool
    private let invocation: Invocation

    /// For one run of a command.
    init(_ verb: DeadLetterDecision.Verb, json: Bool, _ invocation: Invocation) {
        self.verb = verb
        self.json = json
        self.invocation = invocation
    }

    private var participle: String {
        switch verb {
        case .discard: "discarded"
        case .reopen: "reopened"
        }
    }

    private var nothing: CommandFailure {
        CommandFailure(.nothingMatched, "no \(verb.status.rawValue) dead letter matches: nothing was \(participle)")
    }

    /// Carries it out, or says what it would be about.
    /// - Throws: `CommandFailure` if nothing matched or not all could be changed, `SettingsError`, `PostgresError`.
    func carryOut(_ filter: DeadLetterFilterOptions, _ rehearsal: RehearsalOptions) async throws {
        let decision = DeadLetterDecision(
            verb,
            filter.filter,
            by: try rehearsal.name(environment: invocation.environment),
            note: rehearsal.note ?? ""
        )
        try await Database.with(invocation.configuration) { database in
            let matched =
                rehearsal.dryRun
                ? try rehearse(try await decision.selection(on: database.pool))
                : try await carryOut(decision, on: database.pool)
            if let failure = filter.failure(matched: matched, status: verb.status) { throw failure }
        }
    }

    /// - Returns: how many letters matched.
    private func carryOut(_ decision: DeadLetterDecision, on pool: ConnectionPool) async throws -> Int {
        let console = invocation.console
        let start = ContinuousClock.now
        var bar: ProgressBar?
        let report: DeadLetterDecision.Report?
        do {
            // Also before an error, which needs a line of its own.
            defer { if bar != nil { console.note("") } }
            report = try await decision.carryOut(on: pool) { report in
                guard let width = console.barWidth, .now - start >= ReplayOutput.patience else { return }
                if bar == nil { bar = ProgressBar(title: verb.rawValue, total: report.selection.total) }
                let done = report.changed + report.refused
                if let line = bar?.advanced(to: done, after: .now - start, width: width) { console.redraw(line) }
            }
        }
        guard let report else { throw nothing }
        if json {
            console.print(
                JSONText.object([
                    .init(participle, .integer(Int64(report.changed))),
                    .init("refused", .integer(Int64(report.refused))),
                ]).line
            )
        } else {
            console.print("\(report.changed) \(participle)")
        }
        guard report.refused > 0 else { return report.selection.total }
        let reason = "\(report.refused) stay discarded, as the same token is open in another letter: nothing is lost"
        throw CommandFailure(report.changed == 0 ? .failed : .partlyFailed, reason)
    }

    /// - Returns: how many letters match.
    private func rehearse(_ selection: DeadLetterSelection?) throws -> Int {
        guard let selection else { throw nothing }
        let counts = selection.counts.sorted { ($1.value, $0.key.rawValue) < ($0.value, $1.key.rawValue) }
        if json {
            invocation.console.print(
                lines: counts.map { reason, count in
                    JSONText.object([
                        .init("reason", .string(reason.rawValue)), .init("count", .integer(Int64(count))),
                        .init("would_become", .string(verb == .discard ? "discarded" : "open")),
                    ]).line
                }
            )
            return selection.total
        }
        var table = Table([.init("REASON"), .init("LETTERS", isRightAligned: true), .init("WOULD BECOME")])
        for (reason, count) in counts {
            table.append([
                Table.Cell(reason.rawValue), Table.Cell("\(count)"),
                Table.Cell(verb == .discard ? "discarded" : "open"),
            ])
        }
        invocation.console.print(lines: table.lines(style: invocation.console.style))
        invocation.console.note("dry run: nothing was changed")
        return selection.total
    }
}
