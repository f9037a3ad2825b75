import Terminal

/// What one check of `siwad doctor` found.
struct Finding: Sendable, Equatable {
    /// How it stands.
    enum Status: String, Sendable, CaseIterable {
        /// As it should be.
        case pass
        /// Suspicious: somebody should look.
        case warn
        /// Wrong: notifications are not accepted, not applied, or will not be before long.
        case fail
    }

    /// The checks, in the order in which they are shown.
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

    /// What was looked at.
    let check: Check
    /// Which one of several: an app, a file.
    var subject: String?
    /// How it stands.
    let status: Status
    /// What was found, without a full stop.
    let detail: String
    /// What to do about it; nil when it passed.
    var remedy: String?

    /// As it should be.
    static func pass(_ check: Check, _ detail: String, subject: String? = nil) -> Finding {
        Finding(check: check, subject: subject, status: .pass, detail: detail)
    }

    /// Suspicious.
    static func warn(_ check: Check, _ detail: String, _ remedy: String, subject: String? = nil) -> Finding {
        Finding(check: check, subject: subject, status: .warn, detail: detail, remedy: remedy)
    }

    /// Wrong.
    static func fail(_ check: Check, _ detail: String, _ remedy: String) -> Finding {
        Finding(check: check, status: .fail, detail: detail, remedy: remedy)
    }

    /// A check that could not be made, in the words in which a command would end: `cause: next step`.
    static func fail(_ check: Check, _ failure: CommandFailure) -> Finding {
        guard let parts = failure.parts else { return .fail(check, failure.message, "see siwad doctor --help") }
        return .fail(check, parts.cause, parts.nextStep)
    }
}

/// All findings, for a reader and for programs.
struct Report: Sendable, Equatable {
    /// In the order of the checks.
    let findings: [Finding]

    /// Whether nothing is wrong.
    var isPassed: Bool { findings.allSatisfy { $0.status != .fail } }

    /// Findings in any order.
    init(_ findings: [Finding]) {
        let order = Dictionary(uniqueKeysWithValues: Finding.Check.allCases.enumerated().map { ($1, $0) })
        self.findings = findings.enumerated().sorted { one, other in
            (order[one.element.check] ?? 0, one.offset) < (order[other.element.check] ?? 0, other.offset)
        }.map(\.element)
    }

    /// A line for each, wrapped on a terminal.
    func lines(style: OutputStyle) -> [String] {
        let nameWidth = Finding.Check.allCases.map(\.rawValue.count).max() ?? 0
        return findings.flatMap { finding in
            let mark =
                switch finding.status {
                case .pass: style.painted("✓", .green)
                case .warn: style.painted("⚠", .yellow)
                case .fail: style.painted("✗", .red)
                }
            let margin = nameWidth + 4
            let what = finding.subject.map { "\($0): " } ?? ""
            let text = what + finding.detail + (finding.remedy.map { ": \($0)" } ?? "")
            return VisibleText.wrapped(text, to: style.width.map { $0 - margin }).enumerated().map { index, line in
                index == 0
                    ? "\(mark) \(finding.check.rawValue.padding(to: nameWidth))  \(line)"
                    : String(repeating: " ", count: margin) + line
            }
        }
    }

    /// An object for each.
    var json: [JSONText] {
        findings.map { finding in
            .object([
                .init("check", .string(finding.check.rawValue)), .init("subject", JSONText(finding.subject)),
                .init("status", .string(finding.status.rawValue)), .init("detail", .string(finding.detail)),
                .init("remedy", JSONText(finding.remedy)),
            ])
        }
    }
}
