import Basics

/// The times that a token's claims are held against.
struct TokenClock: Sendable {
    /// When the token reached us: it must not have expired by then. Nil: however late it came.
    let receivedAt: WallTime?
    /// The latest time that a claim may name. What lies beyond would win against everything until it is reached.
    let latest: WallTime

    /// For a token that has just come.
    static func live(_ now: WallTime, leeway: Duration) -> TokenClock {
        TokenClock(receivedAt: now, latest: now + leeway)
    }

    /// For a token that came earlier: what lay in the future then is in order once that time is reached.
    static func kept(receivedAt: WallTime?, now: WallTime, leeway: Duration) -> TokenClock {
        TokenClock(receivedAt: receivedAt, latest: now + leeway)
    }
}
