package import Basics
import JOSE

/// One step of a verification, as `siwad verify` explains it.
package struct Check: Sendable, Equatable {
    /// In the order in which the checks are performed.
    package enum Name: String, Sendable, Hashable, CaseIterable {
        /// Three parts of base64url with a header.
        case token
        case algorithm
        /// The key set has the key that `kid` names.
        case key
        case signature
        case claims
        case issuer
        /// `events` is present, so that it is a notification and not an identity token.
        case events
        case audience
        case times
        /// Every claim is present and valid, and the event type is known.
        case event
    }

    package let name: Name
    /// The first check that fails ends the verification.
    package let passed: Bool
    /// What was found. It may contain claims of the token.
    package let detail: String
}

extension NotificationVerifier {
    /// Performs the checks of ``verify(token:keys:now:)`` and describes each, up to the first one that fails.
    package func explain(token: [UInt8], keys: KeySet, now: WallTime) -> [Check] {
        explain(token: token, authority: .signature(keys), receivedAt: now, now: now)
    }

    /// Explains ``verify(token:authority:receivedAt:now:)`` in the same way.
    package func explain(token: [UInt8], authority: Authority, receivedAt: WallTime?, now: WallTime) -> [Check] {
        var evidence = Evidence()
        var notification: VerifiedNotification?
        var failed: Check?
        do {
            notification = try examine(
                token,
                authority: authority,
                receivedAt: receivedAt,
                now: now,
                evidence: &evidence
            )
        } catch {
            let keys = if case .signature(let keys) = authority { keys } else { KeySet.none }
            failed = Check(name: error.check, passed: false, detail: Self.description(of: error, keys: keys))
        }
        let passed = Check.Name.allCases.prefix { $0 != failed?.name }.map { name in
            Check(name: name, passed: true, detail: finding(name, evidence: evidence, notification: notification))
        }
        return passed + (failed.map { [$0] } ?? [])
    }

    private func finding(_ name: Check.Name, evidence: Evidence, notification: VerifiedNotification?) -> String {
        let claims = evidence.claims
        return switch name {
        // An unsupported algorithm ends the verification before payload and signature are decoded.
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

    /// Begins with the reason in the endpoint's response.
    private static func description(of failure: VerificationFailure, keys: KeySet) -> String {
        switch failure {
        case .refused(let rejection, _):
            "\(rejection.rawValue): \(rejection.detail)"
        case .needsKey(let kid):
            keys.unusable.contains(kid)
                ? "key \(JSONValue.quoted(kid)) of the key set cannot be used; the usable ones: \(names(of: keys))"
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
