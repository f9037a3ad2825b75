/// One step of a verification, as `siwad verify` explains it.
package struct Check: Sendable, Equatable {
    /// The steps, in the order in which they are taken.
    package enum Name: String, Sendable, Hashable, CaseIterable {
        /// Three parts of base64url with a header.
        case token
        /// `alg` is RS256.
        case algorithm
        /// The key set has the key that `kid` names.
        case key
        /// The signature is that key's.
        case signature
        /// The payload is strict JSON.
        case claims
        /// `iss` is Apple.
        case issuer
        /// There is an `events` claim: it is a notification and not an identity token.
        case events
        /// `aud` is one of the configured apps.
        case audience
        /// Neither expired nor from the future.
        case times
        /// Every claim is there, of the right type and in range, and the type of the event is known.
        case event
    }

    /// Which step.
    package let name: Name
    /// Whether it was passed. The first that isn't ends the verification.
    package let passed: Bool
    /// What was found, for a person; may name the claims of the token.
    package let detail: String
}
