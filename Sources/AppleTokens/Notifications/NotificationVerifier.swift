package import Basics
import JOSE

/// The result of verifying a token.
package enum Decision: Sendable, Equatable {
    /// Apple signed it, and it can be applied.
    case verified(VerifiedNotification)
    /// Apple signed it, but it cannot be applied: store it for an operator and acknowledge it.
    case deadLetter(DeadLetter)
    /// It is not a notification from Apple: refuse it and store nothing.
    case refused(Rejection)
    /// The key set lacks its key: ask ``KeySetCache`` and verify again. Nothing in it is verified.
    case needsKey(kid: String, token: [UInt8])
}

/// The first check that a token did not pass.
enum VerificationFailure: Error, Sendable {
    case refused(Rejection, at: Check.Name)
    case needsKey(String)
    /// The sentence for the operator names claims, never their values.
    case deadLetter(DeadLetterReason, String, at: Check.Name)

    var check: Check.Name {
        switch self {
        case .refused(_, let check), .deadLetter(_, _, let check): check
        case .needsKey: .key
        }
    }
}

/// The reason to trust a token.
package enum Authority: Sendable {
    /// One of these keys made its signature.
    case signature(KeySet)
    /// A record says that this key verified it at receipt. A token cannot be verified again after Apple's keys rotated. The
    /// caller must have stored the record where no other user can write.
    case record(keyID: String)
}

/// Verifies notifications and gives the reason for each refusal.
///
/// Keeps the prepared keys of the current set, so it belongs to one thread: create one for each.
package final class NotificationVerifier {
    package let policy: NotificationPolicy
    private let prepared = PreparedKeys()

    /// What was read before the decision, for the explanation and for dead letters.
    struct Evidence {
        var keyID: String?
        var isOnRecord = false
        var claims = NotificationClaims()
    }

    package init(policy: NotificationPolicy) {
        self.policy = policy
    }

    /// Verifies a token that is received now.
    package func verify(token: [UInt8], keys: KeySet, now: WallTime) -> Decision {
        verify(token: token, authority: .signature(keys), receivedAt: now, now: now)
    }

    /// Verifies a token. The checks have the order of ``Check/Name``; the first one that fails decides.
    ///
    /// ``Decision/needsKey(kid:token:)`` can be returned again for a key that was found, if the set was replaced since: ask
    /// once, and treat the second time as keys unavailable. Under ``Authority/record(keyID:)`` it is never returned, and
    /// ``Decision/refused(_:)`` only if the configured issuer has changed or the token was never verified.
    ///
    /// - Parameters:
    ///   - receivedAt: it is expired only if it was expired then; nil disables this check.
    ///   - now: times that were in the future at receipt are accepted once they are reached.
    package func verify(token: [UInt8], authority: Authority, receivedAt: WallTime?, now: WallTime) -> Decision {
        var evidence = Evidence()
        do {
            return .verified(
                try examine(token, authority: authority, receivedAt: receivedAt, now: now, evidence: &evidence)
            )
        } catch {
            return decision(for: error, evidence: evidence, token: token)
        }
    }

    /// Performs all checks, for ``verify(token:keys:now:)`` and ``explain(token:keys:now:)``.
    func examine(
        _ token: [UInt8],
        authority: Authority,
        receivedAt: WallTime?,
        now: WallTime,
        evidence: inout Evidence
    ) throws(VerificationFailure) -> VerifiedNotification {
        let jws = try Self.parse(token)
        guard let kid = jws.keyID else { throw .refused(.malformedToken, at: .token) }
        switch authority {
        case .signature(let keys):
            evidence.keyID = kid
            guard let verifier = prepared.verifier(kid, of: keys) else { throw .needsKey(kid) }
            guard verifier.isValid(jws) else { throw .refused(.badSignature, at: .signature) }
        case .record(let keyID):
            evidence.keyID = keyID
            evidence.isOnRecord = true
        }
        do {
            evidence.claims = try NotificationClaims(parsing: jws.payload)
        } catch {
            // A user chooses the nonce of an identity token, and so can make its payload unreadable.
            guard NotificationClaims.namesEvents(jws.payload) else { throw .refused(.notANotification, at: .claims) }
            throw .deadLetter(.malformedClaims, "The payload is not strict JSON: \(error.description).", at: .claims)
        }
        let keyID = evidence.keyID ?? kid
        return try policy.check(evidence.claims, keyID: keyID, token: token, receivedAt: receivedAt, now: now)
    }

    private func decision(for failure: VerificationFailure, evidence: Evidence, token: [UInt8]) -> Decision {
        switch failure {
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
}

// MARK: - Signatures of recorded tokens

extension NotificationVerifier {
    /// The result of verifying the signature of a recorded token again.
    package enum RecordedSignature: Sendable, Equatable {
        case valid
        case unknownKey
        /// The recorded key did not make it, or the record has no token.
        case invalid
    }

    package func signature(ofRecorded token: [UInt8], verifiedBy keyID: String, keys: KeySet) -> RecordedSignature {
        guard let jws = try? CompactJWS(parsing: token), jws.keyID == keyID else {
            // The cause of a parse error does not matter here.
            return .invalid
        }
        guard let verifier = prepared.verifier(keyID, of: keys) else { return .unknownKey }
        return verifier.isValid(jws) ? .valid : .invalid
    }
}

// MARK: - The form of the token

extension NotificationVerifier {
    private static func parse(_ token: [UInt8]) throws(VerificationFailure) -> CompactJWS {
        do {
            return try CompactJWS(parsing: token)
        } catch {
            if isFromAppStore(token) { throw .refused(.appStoreNotification, at: .algorithm) }
            if error.code == .unsupportedAlgorithm { throw .refused(.unsupportedAlgorithm, at: .algorithm) }
            throw .refused(.malformedToken, at: .token)
        }
    }

    /// Recognizes a refused token of the App Store. It has ES256 and a certificate chain in a header that is too long to parse,
    /// so only the beginning is decoded.
    private static func isFromAppStore(_ token: [UInt8]) -> Bool {
        let header = token.prefix(while: { $0 != UInt8(ascii: ".") })
        let whole = min(header.count, 256) / 4 * 4
        // A header that cannot be decoded names no algorithm.
        guard let beginning = try? Base64URL.decode(Array(header.prefix(whole)).span) else { return false }
        return beginning.contains("\"ES256\"".utf8) && beginning.contains("\"x5c\"".utf8)
    }
}

/// Confined to the thread that created it: verifying changes the contexts of libcrypto.
@available(*, unavailable)
extension NotificationVerifier: Sendable {}
