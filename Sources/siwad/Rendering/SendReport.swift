import AppleClient
import Terminal

/// What became of what was sent.
struct SendReport {
    private let summary: SendSummary

    /// The report of a summary.
    init(_ summary: SendSummary) {
        self.summary = summary
    }

    private var sent: Int { summary.statuses.values.reduce(summary.failures, +) }
    private var accepted: Int { summary.statuses[200, default: 0] }
    private var byStatus: [(status: Int, count: Int)] {
        summary.statuses.sorted { $0.key < $1.key }.map { ($0.key, $0.value) }
    }

    /// In one line: `1000 sent in 2.1 s, 476 a second: 200 × 998, 503 × 2; half within 1.2 ms, 99 % within 4.0 ms`.
    var line: String {
        var parts = byStatus.map { "\($0.status) × \($0.count)" }
        if summary.failures > 0 { parts.append("no answer × \(summary.failures)") }
        let seconds = Self.milliseconds(summary.duration) / 1_000
        var text = "\(sent) sent in \(Self.rounded(seconds)) s"
        if sent > 1, seconds > 0 { text += ", \(Int(Double(sent) / seconds)) a second" }
        text += ": " + parts.joined(separator: ", ")
        guard let half = summary.latency(ofShare: 0.5), let most = summary.latency(ofShare: 0.99) else { return text }
        if sent == 1 { return text + "; after \(Self.rounded(Self.milliseconds(half))) ms" }
        return text + "; half within \(Self.rounded(Self.milliseconds(half))) ms, 99 % within "
            + "\(Self.rounded(Self.milliseconds(most))) ms"
    }

    /// As JSON.
    var json: JSONText {
        func microseconds(_ share: Double) -> JSONText {
            JSONText(summary.latency(ofShare: share).map { Int64(Self.milliseconds($0) * 1_000) })
        }
        return .object([
            .init("sent", .integer(Int64(sent))),
            .init("statuses", .object(byStatus.map { .init("\($0.status)", .integer(Int64($0.count))) })),
            .init("failures", .integer(Int64(summary.failures))),
            .init("first_failure", JSONText(summary.firstFailure)),
            .init("duration_ms", .integer(Int64(Self.milliseconds(summary.duration)))),
            .init("p50_us", microseconds(0.5)),
            .init("p99_us", microseconds(0.99)),
        ])
    }

    /// Why the command fails, if not everything was accepted.
    var failure: CommandFailure? {
        if accepted == sent { return nil }
        if summary.statuses.isEmpty {
            return CommandFailure(.unavailable, "no answer: \(summary.firstFailure ?? "unknown"): check the URL")
        }
        let refused = "\(sent - accepted) of \(sent) were not accepted"
        return CommandFailure(accepted == 0 ? .failed : .partlyFailed, refused)
    }

    private static func milliseconds(_ duration: Duration) -> Double {
        Double(duration.components.seconds) * 1_000 + Double(duration.components.attoseconds) / 1e15
    }

    private static func rounded(_ value: Double) -> String {
        "\((value * 10).rounded() / 10)"
    }
}
