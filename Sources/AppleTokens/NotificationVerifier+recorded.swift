package import Basics
import JOSE

extension NotificationVerifier {
    /// Judges once more what was verified when it was received: its signature is taken as recorded, everything else goes
    /// through the checks of ``verify(token:keys:now:)`` under the policy in force.
    ///
    /// A token can't be verified for ever: its key rotates away. So whoever keeps one, keeps with it which key verified it
    /// and when it came, and must have kept both where nobody else can write.
    ///
    /// - Parameters:
    ///   - token: the compact JWS as received.
    ///   - keyID: `kid` of the key that verified it then.
    ///   - receivedAt: when it was received; the time that it is judged at, or it would be `expired` after a day.
    /// - Returns: never ``Verdict/needsKey(kid:token:)``; ``Verdict/refused(_:)`` only when the issuer in force is another
    ///   than at receipt, or when this is no token that was ever verified.
    package func judge(recorded token: [UInt8], verifiedBy keyID: String, receivedAt: WallTime) -> Verdict {
        verify(
            token: token,
            authority: .record(keyID: keyID),
            clock: .live(receivedAt, leeway: policy.leeway)
        )
    }

    /// The result of verifying the signature of a recorded token again.
    package enum RecordedSignature: Sendable, Equatable {
        /// The key in the record made it.
        case valid
        /// The key in the record is not known.
        case unknownKey
        /// The key in the record did not make it, or the record holds no token.
        case invalid
    }

    /// Verifies the signature of a token that a record calls verified.
    package func signature(ofRecorded token: [UInt8], verifiedBy keyID: String, keys: KeySet) -> RecordedSignature {
        guard let jws = try? CompactJWS(parsing: token), jws.keyID == keyID else {
            // The cause of a parse error changes nothing here.
            return .invalid
        }
        guard let verifier = verifier(keyID, of: keys) else { return .unknownKey }
        return verifier.isValid(jws) ? .valid : .invalid
    }
}
