import Basics

/// When the code of a sign-in is traded again after Apple gave no answer.
enum ExchangeSchedule {
    /// Apple accepts a code for five minutes.
    static let codeLifetime = Duration.seconds(300)

    /// Enough for the request to reach Apple before the code's life ends.
    private static let lastChance = Duration.seconds(10)

    private static let pauses: [Duration] = [1, 2, 5, 10, 30, 60, 120].map { .seconds($0) }

    /// - Parameters:
    ///   - attempts: in the background, so far.
    ///   - retryAfter: what Apple asked for, in seconds.
    /// - Returns: nil if Apple accepts the code no longer by then.
    static func next(
        after attempts: Int,
        issuedAt: WallTime,
        retryAfter: Int?,
        now: WallTime
    ) -> WallTime? {
        let usual = now + pauses[min(attempts, pauses.count - 1)]
        let end = issuedAt + codeLifetime
        let last = end - lastChance
        let asked = now + .seconds(retryAfter ?? 0)
        // If Apple asks for a longer pause than the code lives, one attempt is made all the same.
        let due = max(usual, now < last ? min(asked, last) : asked)
        return due < end ? due : nil
    }
}
