import Basics

/// When the code of a sign-in is traded again after Apple gave no answer.
enum ExchangeSchedule {
    /// Apple accepts a code for five minutes.
    static let codeLifetime = Duration.seconds(300)

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
        let pause = max(pauses[min(attempts, pauses.count - 1)], .seconds(retryAfter ?? 0))
        let due = now + pause
        return due < issuedAt + codeLifetime ? due : nil
    }
}
