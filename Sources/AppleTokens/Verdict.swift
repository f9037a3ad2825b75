/// What became of one token.
package enum Verdict: Sendable, Equatable {
    /// Apple signed it and we understand it.
    case verified(VerifiedNotification)
    /// Apple signed it, but it can't be applied: keep it for an operator and acknowledge it.
    case deadLetter(DeadLetter)
    /// It isn't Apple's notification: say so and keep nothing.
    case refused(Rejection)
    /// The key set at hand lacks the key that it names: ask ``KeySetCache`` and verify again. Nothing of it is believed.
    case needsKey(kid: String, token: [UInt8])
}
