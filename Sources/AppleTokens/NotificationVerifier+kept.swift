package import Basics

/// Why a token is taken for Apple's.
package enum Authority: Sendable {
    /// By its signature, if one of these keys made it.
    case signature(KeySet)
    /// By the record that the key of this name verified it at receipt. Neither `exp` nor the rotation of keys leaves a
    /// way to verify a token again for ever.
    case record(keyID: String)
}

/// For tokens that were kept: the checks of the endpoint, later.
extension NotificationVerifier {
    /// Takes a kept token through the checks of ``verify(token:keys:now:)``.
    ///
    /// - Parameters:
    ///   - receivedAt: when it came: it is late only if it was late then. Nil: it is accepted however late it came.
    ///   - now: the present, which nothing may be ahead of by more than the leeway.
    package func verify(token: [UInt8], authority: Authority, receivedAt: WallTime?, now: WallTime) -> Verdict {
        let clock = TokenClock.kept(receivedAt: receivedAt, now: now, leeway: policy.leeway)
        return verify(token: token, authority: authority, clock: clock)
    }

    /// Says what each check of ``verify(token:authority:receivedAt:now:)`` finds, up to the first that isn't passed.
    package func explain(token: [UInt8], authority: Authority, receivedAt: WallTime, now: WallTime) -> [Check] {
        let clock = TokenClock.kept(receivedAt: receivedAt, now: now, leeway: policy.leeway)
        return explain(token: token, authority: authority, clock: clock)
    }
}
