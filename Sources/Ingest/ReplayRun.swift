package import AccountStore

/// What an operator wants to be replayed, and how.
package struct ReplayRun: Sendable {
    /// Which of the open letters.
    package var filter: DeadLetterFilter
    /// Who wants it.
    package var operatorName: String
    /// Why.
    package var note: String
    /// So many letters a second; nil: as fast as it goes.
    package var rate: Double?
    /// Takes letters too that had come after their `exp`: what is newer stays in force anyway.
    package var acceptsExpired: Bool
    /// Finds out what would become of the letters, and changes nothing.
    package var isRehearsal: Bool
    /// Letters in one transaction.
    package var batch: Int

    /// A run over these letters.
    package init(
        _ filter: DeadLetterFilter,
        by operatorName: String,
        note: String,
        rate: Double? = nil,
        acceptsExpired: Bool = false,
        isRehearsal: Bool = false,
        batch: Int = 256
    ) {
        self.filter = filter
        self.operatorName = operatorName
        self.note = note
        self.rate = rate
        self.acceptsExpired = acceptsExpired
        self.isRehearsal = isRehearsal
        self.batch = max(1, batch)
    }

    /// Letters in one transaction, so that a slow run goes evenly.
    var pacedBatch: Int {
        guard let rate else { return batch }
        return Int(min(Double(batch), max(1, rate / 4)))
    }

    /// When the letter after so many may be taken.
    func resumption(after done: Int, since start: ContinuousClock.Instant) -> ContinuousClock.Instant? {
        guard let rate else { return nil }
        return start + .seconds(Double(done) / rate)
    }
}
