import AppleTokens
import JOSE
import Settings
import Terminal

/// What the checks of the endpoint say about one token, for a reader.
struct Explanation {
    /// One check.
    struct Line {
        let name: String
        /// nil: not checked.
        let passed: Bool?
        let detail: String
    }

    /// The checks up to the first that failed.
    let checks: [Line]

    /// Takes a token through the checks.
    ///
    /// Without configured apps the token's own audience takes their place, so that everything else can be looked at.
    init(of token: [UInt8], keys: KeySet, configuration: Configuration, now: WallTime) throws {
        try self.init(of: token, configuration) { $0.explain(token: token, keys: keys, now: now) }
    }

    /// Takes a token that was kept through the checks as a replay would.
    init(
        ofKept token: [UInt8],
        authority: Authority,
        receivedAt: WallTime,
        configuration: Configuration,
        now: WallTime
    ) throws {
        try self.init(of: token, configuration) {
            $0.explain(token: token, authority: authority, receivedAt: receivedAt, now: now)
        }
    }

    private init(
        of token: [UInt8],
        _ configuration: Configuration,
        explain: (NotificationVerifier) -> [Check]
    ) throws {
        let audiences = try configuration.apps ?? Self.anyAudience(of: token)
        let policy = NotificationPolicy(
            issuer: configuration.issuer,
            audiences: audiences,
            leeway: configuration.clockLeeway
        )
        let isAnyAudience = configuration.apps == nil
        checks = explain(NotificationVerifier(policy: policy)).map { check in
            guard check.name == .audience, check.passed, isAnyAudience else {
                return Line(name: check.name.rawValue, passed: check.passed, detail: check.detail)
            }
            let app = audiences.groups.first?.app.rawValue ?? ""
            return Line(name: check.name.rawValue, passed: nil, detail: "\(app), any will do: SIWAD_APPS is not set")
        }
    }

    /// Whether none failed.
    var isPassed: Bool { checks.allSatisfy { $0.passed != false } }

    /// A line for each check, wrapped to fit.
    func lines(style: OutputStyle) -> [String] {
        let nameWidth = Check.Name.allCases.map(\.rawValue.count).max() ?? 0
        return checks.flatMap { check in
            let mark =
                switch check.passed {
                case .some(true): style.painted("✓", .green)
                case .some(false): style.painted("✗", .red)
                case .none: style.painted("–", .yellow)
                }
            let name = check.name.padding(to: nameWidth)
            let margin = nameWidth + 4
            let text = VisibleText.wrapped(check.detail, to: style.width.map { $0 - margin })
            return text.enumerated().map { index, line in
                index == 0 ? "\(mark) \(name)  \(line)" : String(repeating: " ", count: margin) + line
            }
        }
    }

    /// An object for each check.
    var json: [JSONText] {
        checks.map { check in
            .object([
                .init("check", .string(check.name)), .init("passed", JSONText(check.passed)),
                .init("detail", .string(check.detail)),
            ])
        }
    }

    private static func anyAudience(of token: [UInt8]) throws(AudienceMapError) -> AudienceMap {
        // A token that can't be read fails at an earlier check than the audience's.
        let claims = (try? CompactJWS(parsing: token)).flatMap { try? JSONValue(parsing: $0.payload) }
        let audience = claims?["aud"]?.string ?? "none"
        do {
            return try AudienceMap(parsing: "XXXXXXXXXX/" + audience)
        } catch {
            return try AudienceMap(parsing: "XXXXXXXXXX/none")
        }
    }
}

extension String {
    /// The text with blanks up to a width.
    func padding(to width: Int) -> String {
        self + String(repeating: " ", count: max(0, width - VisibleText.width(self)))
    }
}
