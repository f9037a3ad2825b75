/// Keeps one fault that goes on from filling the log: another cause is worth a line at once, the same one now and then.
struct Complaint {
    private static let interval = Duration.seconds(30)
    private var last: (cause: String, at: ContinuousClock.Instant)?

    /// The fault that goes on; nil for none.
    var cause: String? { last?.cause }

    /// Whether a fault of this cause is worth a line.
    mutating func isDue(_ cause: String, at now: ContinuousClock.Instant = .now) -> Bool {
        if let last, last.cause == cause, now - last.at < Self.interval { return false }
        last = (cause, now)
        return true
    }

    /// The fault is over.
    ///
    /// - Returns: whether there was one.
    mutating func settled() -> Bool {
        defer { last = nil }
        return last != nil
    }
}
