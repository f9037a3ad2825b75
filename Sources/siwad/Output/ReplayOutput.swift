import AccountStore
import AppleTokens
import Ingest
import Terminal

struct ReplayOutput {
    private let isDryRun: Bool
    private let json: Bool
    private let listLimit: Int
    private let console: Console
    private var progress: ProgressLine
    private var lastReport: ReplayReport?
    private var listed: [ReplayResult] = []
    /// One of the letters that stay open, for a command that explains it.
    private var firstDead: Int64?
    /// The changes whose letters stay open for several causes.
    private var changesWithSeveralCauses: Set<ReplayReport.Change> = []

    init(_ command: DeadLettersReplayCommand, _ console: Console) {
        isDryRun = command.rehearsal.dryRun
        json = command.json
        listLimit = command.limit ?? 50
        self.console = console
        progress = ProgressLine(title: isDryRun ? "dry run" : "replaying", on: console)
    }

    /// Records the letters of a transaction. A dry run with `--json` prints them immediately.
    ///
    /// - Throws: an empty `CommandFailure` if their reader is gone: live traffic would wait for the rest of the dry run.
    mutating func add(_ fates: [ReplayResult], _ report: ReplayReport) throws {
        lastReport = report
        compareCauses(of: fates, report)
        firstDead = firstDead ?? fates.first { $0.end.isDead }?.id
        if isDryRun, json {
            console.print(lines: Self.letterColumns.objects(of: fates).map(\.line))
            guard fates.isEmpty || !Console.isOutputClosed else {
                progress.end()
                throw CommandFailure(.done, "")
            }
        } else if isDryRun, listed.count < listLimit {
            listed += fates.prefix(listLimit - listed.count)
        }
        progress.advance(to: report.replayed + report.dead, of: report.matched)
    }

    /// Reports how far the replay came before it was interrupted or failed.
    mutating func interrupt() {
        progress.end()
        guard !isDryRun, let lastReport else { return }
        // After Ctrl-C, the operator wants to know even that nothing was done.
        guard Task.isCancelled || lastReport.replayed + lastReport.dead > 0 else { return }
        console.note("\(Self.sentence(lastReport)) so far; the same command goes on with what is left")
    }

    /// - Parameter missing: the failure to report about named letters that did not match; nil if all did.
    /// - Throws: `CommandFailure` if letters stayed open or did not match, or if others hold all of them.
    mutating func finish(_ report: ReplayReport, missing: CommandFailure?) throws {
        progress.end()
        if let problem = report.keyProblem {
            console.note("Apple's key set could not be fetched, only keys seen before were used: \(problem)")
        }
        if isDryRun {
            printDryRun(report)
            if let missing { throw missing }
            return
        }
        if json {
            console.print(summary(report).line)
        } else {
            console.print(lines: table(report))
            console.print(Self.sentence(report))
        }
        let skipped = "\(report.passedOver) were skipped, as another operator changed them or is changing them"
        if report.passedOver > 0, report.replayed + report.dead == 0 {
            throw CommandFailure(.failed, "\(skipped): run the command again").joined(to: missing)
        }
        if report.passedOver > 0 { console.note(skipped) }
        guard report.dead > 0 else {
            if let missing { throw missing }
            return
        }
        let show = nextCommand("dead-letters \(firstDead.map { "show \($0)" } ?? "list")")
        throw CommandFailure(
            report.replayed == 0 ? .failed : .partlyFailed,
            "\(report.dead) of \(report.replayed + report.dead) stay open: \(show) says why"
        ).joined(to: missing)
    }

    // MARK: - Private parts

    /// A report keeps the cause of the first letter of each change; this finds the changes with further causes.
    private mutating func compareCauses(of fates: [ReplayResult], _ report: ReplayReport) {
        for fate in fates {
            guard case .dead(let reason, let detail) = fate.end else { continue }
            for (change, first) in report.details
            where change.from == fate.formerReason && change.reason == reason && first != detail {
                changesWithSeveralCauses.insert(change)
            }
        }
    }

    private func printDryRun(_ report: ReplayReport) {
        if !json {
            console.print(lines: Self.letterColumns.table(of: listed).lines(style: console.style))
            let more = report.replayed + report.dead - listed.count
            if more > 0 { console.print("… and \(more) more: --json shows all") }
            console.print()
            console.print(lines: table(report))
        }
        console.note("dry run: nothing was changed")
    }

    private func table(_ report: ReplayReport) -> [String] {
        let titles = ["REASON", "LETTERS", isDryRun ? "WOULD BECOME" : "BECAME", "BECAUSE"]
        return changeColumns.table(of: Self.rows(report), titles: titles).lines(style: console.style)
    }

    private func summary(_ report: ReplayReport) -> JSONText {
        let columns: [Column<ReplayReport>] = [
            .init("matched", \.matched), .init("replayed", \.replayed), .init("dead", \.dead),
            .init("passed_over", \.passedOver), .init("sessions_ended", \.sessionsEnded),
            .init("changes") { changeColumns.objects(of: Self.rows($0)) },
        ]
        return columns.object(of: report)
    }

    private static var letterColumns: [Column<ReplayResult>] {
        [
            .init("id", \.id, "LETTER", .right),
            .init("reason", \.formerReason.rawValue, "REASON"),
            .init("would_become", \.end.fields.outcome, "WOULD BECOME") { $0.end.cell },
            .init("dead_reason", \.end.fields.reason),
            .init("detail", \.end.fields.detail, "BECAUSE", .cutEnd(minimum: 12)),
            .init("sessions_ended", \.sessionsEnded),
        ]
    }

    private typealias Row = (change: ReplayReport.Change, count: Int, detail: String?)

    private var changeColumns: [Column<Row>] {
        // The letters of a dry run are not stored, so only its JSON explains each of them.
        let explanation = isDryRun ? "--json shows each" : "dead-letters show explains each"
        return [
            .init("reason", \.change.from.rawValue, "REASON"),
            .init("became", \.change.end.fields.outcome, isDryRun ? "WOULD BECOME" : "BECAME") { $0.change.end.cell },
            .init("dead_reason", \.change.end.fields.reason),
            .init("detail", { hasSeveralCauses($0) ? nil : $0.detail }, "BECAUSE", .cutEnd(minimum: 12)) {
                Table.Cell(hasSeveralCauses($0) ? "various: \(explanation)" : $0.detail)
            },
            .init("count", \.count, "LETTERS", .right),
        ]
    }

    private func hasSeveralCauses(_ row: Row) -> Bool { changesWithSeveralCauses.contains(row.change) }

    /// Sorted by reason, then the most frequent change first.
    private static func rows(_ report: ReplayReport) -> [Row] {
        report.changes.map { ($0.key, $0.value, report.details[$0.key]) }.sorted { one, other in
            (one.change.from.rawValue, other.count, one.change.end.word) < (
                other.change.from.rawValue, one.count, other.change.end.word
            )
        }
    }

    private static func sentence(_ report: ReplayReport) -> String {
        let dead = report.dead > 0 ? ", \(report.dead) stay open" : ""
        let sessions = report.sessionsEnded > 0 ? ", \(counted(report.sessionsEnded, "session")) ended" : ""
        return "\(report.replayed) replayed\(dead)\(sessions)"
    }
}

extension ReplayReport.Change {
    /// The end of its letters, without a detail.
    fileprivate var end: ReplayResult.End {
        if let outcome { return .replayed(outcome) }
        guard let reason else { preconditionFailure("a change has an outcome or a reason") }
        return .dead(reason, detail: "")
    }
}

extension ReplayResult.End {
    /// The outcome or `dead`; for dead letters also the reason and the detail.
    fileprivate var fields: (outcome: String, reason: String?, detail: String?) {
        switch self {
        case .replayed(let outcome): (outcome.rawValue, nil, nil)
        case .dead(let reason, let detail): ("dead", reason.rawValue, detail)
        }
    }

    fileprivate var isDead: Bool { fields.reason != nil }
    fileprivate var word: String { fields.outcome + (fields.reason.map { ": \($0)" } ?? "") }

    fileprivate var cell: Table.Cell {
        switch self {
        case .replayed(.applied): Table.Cell(word, color: .green)
        case .replayed(.superseded), .replayed(.unchanged), .replayed(.duplicate): Table.Cell(word, color: .faint)
        case .dead: Table.Cell(word, color: .red)
        }
    }
}
