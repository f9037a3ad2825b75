import AppleTokens
import Basics
import Ingest
import SignIn

/// An ``IdentityVerifier`` for all tasks. Verifying a token takes about 30 µs, so one is enough.
actor SharedIdentityVerifier {
    /// How long a request waits for a key that Apple has only just published.
    static let longestWait = Duration.seconds(3)

    private let verifier: IdentityVerifier
    private let keys: KeyRing

    init(policy: IdentityPolicy, keys: KeyRing) {
        verifier = IdentityVerifier(policy: policy)
        self.keys = keys
    }

    /// - Throws: the refusal, or `keys-unavailable`.
    nonisolated func verify(
        _ token: [UInt8],
        expecting expectation: IdentityExpectation
    ) async throws(Problem) -> VerifiedIdentity {
        // A token must not expire because it waits for its key.
        let receivedAt = WallTime.now()
        var decision = await decide(token, expectation, receivedAt)
        if case .needsKey(let kid) = decision {
            switch await keys.resolution(of: kid, holding: token.count, within: Self.longestWait) {
            case .keyFound: decision = await decide(token, expectation, receivedAt)
            case .unknownKey: throw Problem(.unknownKey, "Apple's key set has no key of the token's “kid”.")
            case .keysUnavailable(let seconds): throw Self.keysUnavailable(seconds)
            }
        }
        switch decision {
        case .verified(let identity): return identity
        case .refused(let refusal): throw Problem(refusal)
        // A rotation removed the key after it came.
        case .needsKey: throw Self.keysUnavailable(1)
        }
    }

    private func decide(
        _ token: [UInt8],
        _ expectation: IdentityExpectation,
        _ now: WallTime
    ) -> IdentityDecision {
        verifier.verify(token: token, expecting: expectation, keys: keys.keys, now: now)
    }

    private static func keysUnavailable(_ seconds: Int) -> Problem {
        Problem(.keysUnavailable, "Apple's key set can't be fetched at present.", retryAfter: seconds)
    }
}

extension Problem {
    init(_ refusal: IdentityRefusal) {
        // Only Apple's own answers are compared with an access token.
        self.init(Reason(rawValue: refusal.reason.rawValue) ?? .appleUnexpected, refusal.detail)
    }
}
