import Terminal

/// The result of one check of `siwad doctor`.
struct Finding: Sendable, Equatable {
    enum Status: String, Sendable, CaseIterable {
        case pass
        /// Needs attention.
        case warn
        /// Notifications are not accepted or not applied, or soon will not be.
        case fail
    }

    /// The checks, in the order of the output.
    enum Check: String, Sendable, CaseIterable {
        case configuration
        case files
        case database
        case databaseTLS = "database-tls"
        case publicSchema = "public-schema"
        case schema
        case objects
        case databaseClock = "database-clock"
        case partitions
        case maintenance
        case keys
        case keptKeys = "kept-keys"
        case appleClock = "apple-clock"
        case endpoint
        case readiness
        case operations
        case certificate
        case spool
        case disk
        case deadLetters = "dead-letters"
        case notifications
    }

    let check: Check
    /// The app or file, if the check covers several.
    var subject: String?
    let status: Status
    /// Without a full stop.
    let detail: String
    /// The next step; nil if the check passed.
    var remedy: String?

    static func pass(_ check: Check, _ detail: String, subject: String? = nil) -> Finding {
        Finding(check: check, subject: subject, status: .pass, detail: detail)
    }

    static func warn(_ check: Check, _ detail: String, _ remedy: String, subject: String? = nil) -> Finding {
        Finding(check: check, subject: subject, status: .warn, detail: detail, remedy: remedy)
    }

    static func fail(_ check: Check, _ detail: String, _ remedy: String) -> Finding {
        Finding(check: check, status: .fail, detail: detail, remedy: remedy)
    }

    /// A check that failed with an error.
    static func fail(_ check: Check, _ failure: CommandFailure) -> Finding {
        guard let parts = failure.parts else { return .fail(check, failure.message, "see siwad doctor --help") }
        return .fail(check, parts.cause, parts.nextStep)
    }
}

struct Report: Sendable, Equatable, CommandOutput {
    let findings: [Finding]

    var isPassed: Bool { findings.allSatisfy { $0.status != .fail } }

    init(_ findings: [Finding]) {
        let order = Dictionary(uniqueKeysWithValues: Finding.Check.allCases.enumerated().map { ($1, $0) })
        self.findings = findings.enumerated().sorted { one, other in
            (order[one.element.check] ?? 0, one.offset) < (order[other.element.check] ?? 0, other.offset)
        }.map(\.element)
    }

    func lines(style: OutputStyle) -> [String] {
        let width = Finding.Check.allCases.map(\.rawValue.count).max() ?? 0
        return findings.flatMap { finding in
            let mark =
                switch finding.status {
                case .pass: style.painted("✓", .green)
                case .warn: style.painted("⚠", .yellow)
                case .fail: style.painted("✗", .red)
                }
            let subject = finding.subject.map { "\($0): " } ?? ""
            let remedy = finding.remedy.map { ": \($0)" } ?? ""
            return style.check(mark, finding.check.rawValue, nameWidth: width, subject + finding.detail + remedy)
        }
    }

    var json: [JSONText] {
        let columns: [Column<Finding>] = [
            .init("check", \.check.rawValue), .init("subject", \.subject), .init("status", \.status.rawValue),
            .init("detail", \.detail), .init("remedy", \.remedy),
        ]
        return findings.map { columns.object(of: $0) }
    }
}

/// `1 team`, `2 teams`
func counted(_ number: Int, _ noun: String) -> String {
    "\(number) \(noun)\(number == 1 ? "" : "s")"
}

/// A number of bytes in a readable unit: `17 KiB`, `2.4 GiB`.
struct ByteCount: CustomStringConvertible {
    private let bytes: Int64

    init(_ bytes: Int64) {
        self.bytes = bytes
    }

    var description: String {
        var (value, unit) = (bytes, "B")
        var tenths: Int64 = 0
        for next in ["KiB", "MiB", "GiB", "TiB"] where value >= 1_024 {
            tenths = value % 1_024 * 10 / 1_024
            (value, unit) = (value / 1_024, next)
        }
        return value < 10 && tenths > 0 ? "\(value).\(tenths) \(unit)" : "\(value) \(unit)"
    }
}

extension Duration {
    /// In the largest unit in which it is at least 2: `90 s`, `36 h`, `3 d`. A negative duration counts as 0.
    var rounded: String {
        let seconds = max(0, components.seconds)
        return switch seconds {
        case ..<120: "\(seconds) s"
        case ..<7_200: "\(seconds / 60) min"
        case ..<172_800: "\(seconds / 3_600) h"
        default: "\(seconds / 86_400) d"
        }
    }
}
