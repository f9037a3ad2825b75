package import Basics
import JOSE

/// Tells Apple's notifications from everything else, and what is wrong with the rest.
///
/// Keeps what the keys of the current set need to verify with, so it belongs to one thread: make one for each.
package final class NotificationVerifier {
    /// What it verifies against.
    package let policy: NotificationPolicy
    private var preparedVersion: Int?
    private var prepared: [PreparedKey] = []

    private struct PreparedKey {
        let kid: String
        let verifier: RSAVerifier
    }

    /// What came to light before the verdict, for ``explain(token:keys:now:)``.
    struct Evidence {
        var keyID: String?
        var isOnRecord = false
        var claims = NotificationClaims()
    }

    /// A verifier for these apps, this issuer and this leeway.
    package init(policy: NotificationPolicy) {
        self.policy = policy
    }

    /// Verifies one token at the time `now`. The order of the checks is that of ``Check/Name``; the first that isn't
    /// passed decides.
    ///
    /// ``Verdict/needsKey(kid:token:)`` can come again for a key that was found, when the set was replaced meanwhile: ask
    /// once, and count the second time as keys unavailable.
    package func verify(token: [UInt8], keys: KeySet, now: WallTime) -> Verdict {
        verify(token: token, authority: .signature(keys), clock: .live(now, leeway: policy.leeway))
    }

    /// Verifies one token on an authority, by a clock.
    func verify(token: [UInt8], authority: Authority, clock: TokenClock) -> Verdict {
        var evidence = Evidence()
        do {
            return .verified(try examine(token, authority: authority, clock: clock, evidence: &evidence))
        } catch {
            return verdict(error, evidence: evidence, token: token)
        }
    }

    /// The one way through all checks.
    func examine(
        _ token: [UInt8],
        authority: Authority,
        clock: TokenClock,
        evidence: inout Evidence
    ) throws(Objection) -> VerifiedNotification {
        let jws = try Self.parse(token)
        guard let kid = jws.keyID else { throw .refused(.malformedToken, at: .token) }
        switch authority {
        case .signature(let keys):
            evidence.keyID = kid
            guard let verifier = verifier(kid, of: keys) else { throw .needsKey(kid) }
            guard verifier.isValid(jws) else { throw .refused(.badSignature, at: .signature) }
        case .record(let keyID):
            evidence.keyID = keyID
            evidence.isOnRecord = true
        }
        do {
            evidence.claims = try NotificationClaims(parsing: jws.payload)
        } catch {
            // Whoever signs in chooses the nonce of an identity token, and with it whether the payload can be read.
            guard NotificationClaims.namesEvents(jws.payload) else { throw .refused(.notANotification, at: .claims) }
            throw .deadLetter(.malformedClaims, "The payload is not strict JSON: \(error.description).", at: .claims)
        }
        return try policy.judge(evidence.claims, keyID: evidence.keyID ?? kid, token: token, clock: clock)
    }

    /// Says what an objection means for the token.
    func verdict(_ objection: Objection, evidence: Evidence, token: [UInt8]) -> Verdict {
        switch objection {
        case .refused(let rejection, _):
            return .refused(rejection)
        case .needsKey(let kid):
            return .needsKey(kid: kid, token: token)
        case .deadLetter(let reason, let detail, _):
            let event = evidence.claims.event
            let letter = DeadLetter(
                reason: reason,
                detail: detail,
                notificationID: evidence.claims.id.value,
                audience: evidence.claims.audience.value,
                subject: event?.subject.value,
                eventType: event?.type.value,
                verifiedKeyID: evidence.keyID,
                token: token
            )
            return .deadLetter(letter)
        }
    }

    func verifier(_ kid: String, of keys: KeySet) -> RSAVerifier? {
        if preparedVersion != keys.version {
            // A checked key can't be prepared only when libcrypto is out of memory. Its notifications are then answered 503
            // keys-unavailable, after another thread's verifier tried as well, instead of ending the process; the next
            // token has the keys prepared again.
            prepared = keys.keys.compactMap { key in
                (try? RSAVerifier(key.publicKey)).map { PreparedKey(kid: key.keyID, verifier: $0) }
            }
            preparedVersion = prepared.count == keys.keys.count ? keys.version : nil
        }
        return prepared.first { $0.kid == kid }?.verifier
    }
}

// MARK: - The form of the token

extension NotificationVerifier {
    private static func parse(_ token: [UInt8]) throws(Objection) -> CompactJWS {
        do {
            return try CompactJWS(parsing: token)
        } catch {
            if isFromAppStore(token) { throw .refused(.appStoreNotification, at: .algorithm) }
            if error.code == .unsupportedAlgorithm { throw .refused(.unsupportedAlgorithm, at: .algorithm) }
            throw .refused(.malformedToken, at: .token)
        }
    }

    /// Whether a token that is refused anyway looks like one of the App Store, which signs with ES256 and puts a chain of
    /// certificates into a header that is too long to be read here: so only its beginning is looked at.
    private static func isFromAppStore(_ token: [UInt8]) -> Bool {
        let header = token.prefix(while: { $0 != UInt8(ascii: ".") })
        let whole = min(header.count, 256) / 4 * 4
        // What can't be decoded names no algorithm.
        guard let beginning = try? Base64URL.decode(Array(header.prefix(whole)).span) else { return false }
        return contains(beginning, "\"ES256\"") && contains(beginning, "\"x5c\"")
    }

    private static func contains(_ bytes: [UInt8], _ text: String) -> Bool {
        let text = Array(text.utf8)
        guard bytes.count >= text.count else { return false }
        return (0...(bytes.count - text.count)).contains { bytes[$0..<($0 + text.count)].elementsEqual(text) }
    }
}

/// Confined to the thread that made it: the contexts within change with every verification.
@available(*, unavailable)
extension NotificationVerifier: Sendable {}
