import AccountStore
import AppleTokens
import Ingest
import Terminal

/// What a replay prints while it runs and at its end.
struct ReplayOutput {
    /// What takes less is done before a bar could be read.
    static let patience = Duration.milliseconds(500)

    private let isRehearsal: Bool
    private let json: Bool
    /// So many letters of a rehearsal are listed.
    private let listed: Int
    private let console: Console
    private let start = ContinuousClock.now
    private var bar: ProgressBar?
    private var isBarDrawn = false
    private var lastReport: ReplayReport?
    /// The first letters of a rehearsal, as many as are listed.
    private var sample: [LetterFate] = []
    /// The changes whose letters stay open for more than one cause.
    private var various: Set<ReplayReport.Change> = []

    /// For one run, of at most `limit` letters.
    init(isRehearsal: Bool, json: Bool, limit: Int?, console: Console) {
        self.isRehearsal = isRehearsal
        self.json = json
        self.listed = limit ?? 50
        self.console = console
    }

    /// Takes note of progress; in JSON, a rehearsal says at once what each letter would become.
    mutating func take(_ fates: [LetterFate], _ report: ReplayReport) {
        lastReport = report
        compareDetails(of: fates, report)
        if isRehearsal, json {
            console.print(lines: fates.map { Self.json($0).line })
        } else if isRehearsal, sample.count < listed {
            sample += fates.prefix(listed - sample.count)
        }
        guard let width = console.barWidth, .now - start >= Self.patience else { return }
        var bar = bar ?? ProgressBar(title: isRehearsal ? "dry run" : "replaying", total: report.matched)
        if let line = bar.advanced(to: report.replayed + report.dead, after: .now - start, width: width) {
            console.redraw(line)
            isBarDrawn = true
        }
        self.bar = bar
    }

    /// Says how far it came when it could not go on.
    mutating func interrupt() {
        endBar()
        guard !isRehearsal, let lastReport else { return }
        // Who interrupts it wants to know also that nothing was done yet.
        guard Task.isCancelled || lastReport.replayed + lastReport.dead > 0 else { return }
        console.note("\(Self.sentence(lastReport)) so far; the same command goes on with what is left")
    }

    /// Says what was done.
    /// - Throws: `CommandFailure` if letters stayed open.
    mutating func finish(_ report: ReplayReport) throws {
        endBar()
        if let problem = report.keyProblem {
            console.note("Apple's key set could not be fetched, only keys seen before were used: \(problem)")
        }
        if isRehearsal {
            finishRehearsal(report)
            return
        }
        if json {
            console.print(summary(report).line)
        } else {
            console.print(lines: table(report, "BECAME").lines(style: console.style))
            console.print(Self.sentence(report))
        }
        if report.passedOver > 0 {
            console.note("\(report.passedOver) were attended to by somebody else meanwhile, or are at present")
        }
        guard report.dead > 0 else { return }
        throw CommandFailure(
            report.replayed == 0 ? .failed : .partlyFailed,
            "\(report.dead) of \(report.replayed + report.dead) stay open: siwad dead-letters show says why"
        )
    }

    /// Finds the changes whose sentence, that of the first letter, is not that of them all.
    private mutating func compareDetails(of fates: [LetterFate], _ report: ReplayReport) {
        for fate in fates {
            guard case .dead(let reason, let detail) = fate.end else { continue }
            for (change, first) in report.details
            where change.from == fate.formerReason && change.reason == reason && first != detail {
                various.insert(change)
            }
        }
    }

    private mutating func endBar() {
        if isBarDrawn { console.note("") }
        isBarDrawn = false
    }

    private func finishRehearsal(_ report: ReplayReport) {
        if !json {
            var letters = Table([
                .init("LETTER", isRightAligned: true), .init("REASON"), .init("WOULD BECOME"),
                .init("BECAUSE", cut: .end, minimumWidth: 12),
            ])
            for fate in sample {
                letters.append([
                    Table.Cell("\(fate.id)"), Table.Cell(fate.formerReason.rawValue), Self.cell(fate.end),
                    Table.Cell(Self.detail(fate.end)),
                ])
            }
            console.print(lines: letters.lines(style: console.style))
            if report.replayed + report.dead > sample.count {
                console.print("… and \(report.replayed + report.dead - sample.count) more: --json shows all")
            }
            console.print()
            console.print(lines: table(report, "WOULD BECOME").lines(style: console.style))
        }
        console.note("dry run: nothing was changed")
    }
}

// MARK: - Words

extension ReplayOutput {
    private typealias Row = (change: ReplayReport.Change, count: Int)

    private static func rows(_ report: ReplayReport) -> [Row] {
        report.changes.map { ($0.key, $0.value) }.sorted { one, other in
            (one.change.from.rawValue, other.count, word(one.change)) < (
                other.change.from.rawValue, one.count, word(other.change)
            )
        }
    }

    private func table(_ report: ReplayReport, _ became: String) -> Table {
        var table = Table([
            .init("REASON"), .init("LETTERS", isRightAligned: true), .init(became),
            .init("BECAUSE", cut: .end, minimumWidth: 12),
        ])
        // What a dry run finds is written nowhere else.
        let explanation = isRehearsal ? "--json shows each" : "siwad dead-letters show explains each"
        for (change, count) in Self.rows(report) {
            let detail = various.contains(change) ? "various: \(explanation)" : report.details[change]
            table.append([
                Table.Cell(change.from.rawValue), Table.Cell("\(count)"),
                Table.Cell(Self.word(change), color: Self.color(change.outcome)), Table.Cell(detail),
            ])
        }
        return table
    }

    private static func word(_ change: ReplayReport.Change) -> String {
        change.outcome?.rawValue ?? "dead: \(change.reason?.rawValue ?? "")"
    }

    private static func color(_ outcome: NotificationOutcome?) -> Color {
        switch outcome {
        case .applied: .green
        case .superseded, .unchanged, .duplicate: .faint
        case .none: .red
        }
    }

    private static func cell(_ end: LetterFate.End) -> Table.Cell {
        switch end {
        case .replayed(let outcome): Table.Cell(outcome.rawValue, color: color(outcome))
        case .dead(let reason, _): Table.Cell("dead: \(reason.rawValue)", color: .red)
        }
    }

    private static func detail(_ end: LetterFate.End) -> String? {
        switch end {
        case .replayed: nil
        case .dead(_, let detail): detail
        }
    }

    private static func sentence(_ report: ReplayReport) -> String {
        var sentence = "\(report.replayed) replayed"
        if report.dead > 0 { sentence += ", \(report.dead) dead again" }
        let sessions = report.sessionsEnded
        return sessions == 0 ? sentence : sentence + ", \(sessions) \(sessions == 1 ? "session" : "sessions") ended"
    }

    private static func json(_ fate: LetterFate) -> JSONText {
        var members: [JSONText.Member] = [
            .init("id", .integer(fate.id)), .init("reason", .string(fate.formerReason.rawValue)),
        ]
        switch fate.end {
        case .replayed(let outcome):
            members += [
                .init("would_become", .string(outcome.rawValue)), .init("dead_reason", nil), .init("detail", nil),
            ]
        case .dead(let reason, let detail):
            members += [
                .init("would_become", "dead"), .init("dead_reason", .string(reason.rawValue)),
                .init("detail", .string(detail)),
            ]
        }
        return .object(members + [.init("sessions_ended", .integer(Int64(fate.sessionsEnded)))])
    }

    private func summary(_ report: ReplayReport) -> JSONText {
        .object([
            .init("matched", .integer(Int64(report.matched))), .init("replayed", .integer(Int64(report.replayed))),
            .init("dead", .integer(Int64(report.dead))), .init("passed_over", .integer(Int64(report.passedOver))),
            .init("sessions_ended", .integer(Int64(report.sessionsEnded))),
            .init(
                "changes",
                .array(
                    Self.rows(report).map { change, count in
                        let detail = various.contains(change) ? nil : report.details[change]
                        return .object([
                            .init("reason", .string(change.from.rawValue)),
                            .init("became", .string(change.outcome?.rawValue ?? "dead")),
                            .init("dead_reason", JSONText(change.reason?.rawValue)),
                            .init("detail", JSONText(detail)),
                            .init("count", .integer(Int64(count))),
                        ])
                    }
                )
            ),
        ])
    }
}
