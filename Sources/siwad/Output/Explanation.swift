import AppleTokens
import JOSE
import Settings
import Terminal

/// The endpoint's checks of one token, for a reader.
struct Explanation: CommandOutput {
    struct CheckResult {
        let name: String
        /// nil: not checked.
        let passed: Bool?
        let detail: String
    }

    /// The checks up to the first that failed.
    let checks: [CheckResult]

    /// If no apps are configured, every audience passes, so that the other checks can run.
    init(
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
                return CheckResult(name: check.name.rawValue, passed: check.passed, detail: check.detail)
            }
            let app = audiences.groups.first?.app.rawValue ?? ""
            return CheckResult(
                name: check.name.rawValue,
                passed: nil,
                detail: "\(app), any will do: SIWAD_APPS is not set"
            )
        }
    }

    /// True if no check failed.
    var isPassed: Bool { checks.allSatisfy { $0.passed != false } }

    func lines(style: OutputStyle) -> [String] {
        let marked = MarkedLines(style: style, nameWidth: Check.Name.allCases.map(\.rawValue.count).max() ?? 0)
        return checks.flatMap { check in
            marked.lines(check.passed.map { $0 ? .passed : .failed } ?? .skipped, check.name, check.detail)
        }
    }

    var json: [JSONText] {
        let columns: [Column<CheckResult>] = [
            .init("check", \.name), .init("passed", \.passed), .init("detail", \.detail),
        ]
        return checks.map { columns.object(of: $0) }
    }

    private static func anyAudience(of token: [UInt8]) throws(AudienceMapError) -> AudienceMap {
        // A token that can't be parsed fails before the audience is checked.
        let claims = (try? CompactJWS(parsing: token)).flatMap { try? JSONValue(parsing: $0.payload) }
        let audience = claims?["aud"]?.string ?? "none"
        do {
            return try AudienceMap(parsing: "XXXXXXXXXX/" + audience)
        } catch {
            return try AudienceMap(parsing: "XXXXXXXXXX/none")
        }
    }
}

/// A token's header and claims, for a reader.
struct DecodedToken {
    private let members: [(name: String, value: String)]

    /// Claims that are not strict JSON are shown as one text.
    init(_ jws: CompactJWS) {
        let header = [("alg", CompactJWS.algorithm), ("kid", jws.keyID ?? "")]
        let claims: [(String, String)]
        if let payload = try? JSONValue(parsing: jws.payload), payload.members != nil {
            claims = Self.members(of: payload, within: "")
        } else {
            claims = [("payload", String(decoding: jws.payload, as: UTF8.self))]
        }
        members = (header + claims).map { (name: $0.0, value: $0.1) }
    }

    /// A line for each member; values wider than the terminal continue on further lines.
    func lines(style: OutputStyle) -> [String] {
        let width = members.map { VisibleText.width(VisibleText.visible($0.name)) }.max() ?? 0
        return members.flatMap { name, value in
            Self.pieces(VisibleText.visible(value), of: style.width.map { max(20, $0 - width - 4) })
                .enumerated()
                .map { ($0 == 0 ? VisibleText.visible(name) : "").padding(to: width) + "  " + $1 }
        }
    }

    private static func members(of object: JSONValue, within path: String) -> [(String, String)] {
        (object.members ?? []).flatMap { member -> [(String, String)] in
            let name = path + member.name
            // Apple sends the events as JSON in a string.
            let inner = member.value.string.flatMap { try? JSONValue(parsing: Array($0.utf8)) } ?? member.value
            if member.name == "events", inner.members != nil { return members(of: inner, within: "events.") }
            return [(name, text(member.name, member.value))]
        }
    }

    private static func text(_ name: String, _ value: JSONValue) -> String {
        let text = value.string ?? value.compactText
        guard ["iat", "exp", "event_time"].contains(name), let number = value.integer else { return text }
        return "\(text) (\(WallTime(secondsOrMilliseconds: number).secondText) UTC)"
    }

    /// Splits a text into pieces of at most `width` columns.
    private static func pieces(_ text: String, of width: Int?) -> [String] {
        guard let width, VisibleText.width(text) > width else { return [text] }
        var pieces: [String] = []
        var (piece, columns) = ("", 0)
        for character in text {
            let more = VisibleText.width(String(character))
            if columns + more > width {
                pieces.append(piece)
                (piece, columns) = ("", 0)
            }
            piece.append(character)
            columns += more
        }
        return pieces + [piece]
    }
}
