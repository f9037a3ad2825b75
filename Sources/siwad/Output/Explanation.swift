import AppleTokens
import Basics
import JOSE
import Settings
import Terminal

/// The checks of one token, for a reader.
struct Explanation: CommandOutput {
    struct CheckResult {
        let name: String
        /// nil: not checked.
        var passed: Bool?
        var detail: String
    }

    /// The checks up to the first that failed.
    let checks: [CheckResult]
    /// Of the longest name of a check, whichever checks were run.
    private let nameWidth: Int

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
        nameWidth = Check.Name.allCases.map(\.rawValue.count).max() ?? 0
        checks = explain(NotificationVerifier(policy: policy)).map { check in
            var result = CheckResult(name: check.name.rawValue, passed: check.passed, detail: check.detail)
            if check.name == .audience, check.passed, configuration.apps == nil {
                let app = audiences.groups.first?.app.rawValue ?? ""
                result.passed = nil
                result.detail = "\(app), any will do: SIWAD_APPS is not set"
            }
            return result
        }
    }

    init(_ checks: [IdentityCheck]) {
        nameWidth = IdentityCheck.Name.allCases.map(\.rawValue.count).max() ?? 0
        self.checks = checks.map { CheckResult(name: $0.name.rawValue, passed: $0.passed, detail: $0.detail) }
    }

    /// True if the checks of notifications end because the token is none.
    var isIdentityToken: Bool {
        checks.last.map { $0.passed == false && $0.detail.hasPrefix(Rejection.notANotification.rawValue) } ?? false
    }

    var isPassed: Bool { checks.allSatisfy { $0.passed != false } }

    func lines(style: OutputStyle) -> [String] {
        return checks.flatMap { check in
            let mark =
                switch check.passed {
                case true?: style.painted("✓", .green)
                case false?: style.painted("✗", .red)
                case nil: style.painted("–", .yellow)
                }
            return style.check(mark, check.name, nameWidth: nameWidth, check.detail)
        }
    }

    var json: [JSONText] {
        let columns: [Column<CheckResult>] = [
            .init("check", \.name), .init("passed", \.passed), .init("detail", \.detail),
        ]
        return columns.objects(of: checks)
    }

    private static func anyAudience(of token: [UInt8]) throws -> AudienceMap {
        // A token that can't be parsed fails before the audience is checked.
        let claims = (try? CompactJWS(parsing: token)).flatMap { try? JSONValue(parsing: $0.payload) }
        let audience = claims?["aud"]?.string ?? "none"
        // The checks explain what is wrong with an audience that is no client id.
        return try (try? AudienceMap(parsing: "XXXXXXXXXX/" + audience)) ?? AudienceMap(parsing: "XXXXXXXXXX/none")
    }
}

struct DecodedToken {
    private let members: [(name: String, value: String)]

    /// Claims that are not strict JSON are shown as one text.
    init(_ jws: CompactJWS) {
        var members = [("alg", CompactJWS.algorithm), ("kid", jws.keyID ?? "")]
        if let payload = try? JSONValue(parsing: jws.payload), payload.members != nil {
            members += Self.members(of: payload, within: "")
        } else {
            members.append(("payload", String(decoding: jws.payload, as: UTF8.self)))
        }
        self.members = members
    }

    /// A line for each member; values wider than the terminal continue on further lines.
    func lines(style: OutputStyle) -> [String] {
        let width = members.map { VisibleText.width(VisibleText.visible($0.name)) }.max() ?? 0
        return members.flatMap { name, value in
            VisibleText.split(VisibleText.visible(value), every: style.width.map { max(20, $0 - width - 4) })
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
}
