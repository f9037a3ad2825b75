package import Basics
import JOSE

extension NotificationVerifier {
    /// Takes a token through exactly the checks of ``verify(token:keys:now:)`` and says what each found, up to and
    /// including the first that isn't passed.
    package func explain(token: [UInt8], keys: KeySet, now: WallTime) -> [Check] {
        explain(token: token, authority: .signature(keys), clock: .live(now, leeway: policy.leeway))
    }

    /// Explains one token on an authority, by a clock.
    func explain(token: [UInt8], authority: Authority, clock: TokenClock) -> [Check] {
        var evidence = Evidence()
        do {
            let notification = try examine(token, authority: authority, clock: clock, evidence: &evidence)
            return Check.Name.allCases.map { name in
                Check(name: name, passed: true, detail: finding(name, evidence: evidence, notification: notification))
            }
        } catch {
            let passed = Check.Name.allCases.prefix { $0 != error.check }
            let checks = passed.map { name in
                Check(name: name, passed: true, detail: finding(name, evidence: evidence, notification: nil))
            }
            let keys = if case .signature(let keys) = authority { keys } else { KeySet.none }
            return checks + [Check(name: error.check, passed: false, detail: Self.mistake(error, keys: keys))]
        }
    }

    /// What a passed check found.
    private func finding(_ name: Check.Name, evidence: Evidence, notification: VerifiedNotification?) -> String {
        let claims = evidence.claims
        return switch name {
        // The algorithm decides before payload and signature are decoded, and before a key is looked for.
        case .token: evidence.keyID == nil ? "looks like a compact JWS" : "a compact JWS"
        case .algorithm: CompactJWS.algorithm
        case .key: key(evidence)
        case .signature: evidence.isOnRecord ? "valid at receipt, as recorded" : "valid"
        case .claims: "strict JSON"
        case .issuer: policy.issuer
        case .events: "there"
        case .audience: audience(claims.audience.value)
        case .times: times(claims)
        case .event: notification.map(event) ?? ""
        }
    }

    private func key(_ evidence: Evidence) -> String {
        let name = "kid \(JSONValue.quoted(evidence.keyID ?? ""))"
        return evidence.isOnRecord ? "\(name) verified it at receipt" : "\(name) is in the key set"
    }

    private func audience(_ audience: String?) -> String {
        guard let audience, let group = policy.audiences.group(audience: audience) else { return "" }
        return "\(audience), team \(group.team), app \(group.app)"
    }

    private func times(_ claims: NotificationClaims) -> String {
        let named = [
            ("issued", claims.issuedAt.value.map(WallTime.init(seconds:))),
            ("expires", claims.expiry.value.map(WallTime.init(seconds:))),
            ("event", claims.event?.time.value.map(WallTime.init(secondsOrMilliseconds:))),
        ]
        let texts = named.compactMap { name, time in time.map { "\(name) \($0)" } }
        return texts.joined(separator: ", ")
    }

    private func event(_ notification: VerifiedNotification) -> String {
        let event = notification.event
        let subject = JSONValue.quoted(event.subject.rawValue)
        return "\(event.rawType) of \(subject), jti \(JSONValue.quoted(notification.id.rawValue))"
    }

    /// What a check that wasn't passed found, and what the endpoint answers to it.
    private static func mistake(_ objection: Objection, keys: KeySet) -> String {
        switch objection {
        case .refused(let rejection, _):
            "\(rejection.rawValue): \(rejection.detail)"
        case .needsKey(let kid):
            keys.unusable.contains(kid)
                ? "key \(JSONValue.quoted(kid)) of the key set can't be used; the usable ones: \(names(of: keys))"
                : "no key \(JSONValue.quoted(kid)) in the key set, which has \(names(of: keys))"
        case .deadLetter(let reason, let detail, _):
            "\(reason.rawValue): \(detail)"
        }
    }

    private static func names(of keys: KeySet) -> String {
        let names = keys.keys.map(\.keyID).joined(separator: ", ")
        return names.isEmpty ? "none" : names
    }
}
