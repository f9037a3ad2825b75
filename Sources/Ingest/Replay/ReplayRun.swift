package import AccountStore
package import AppleTokens

/// A replay of dead letters that an operator wants.
package struct ReplayRun: Sendable {
    package var filter: DeadLetterFilter
    package var operatorName: String
    /// The operator's reason, for the audit.
    package var note: String
    /// Letters a second; nil: no limit.
    package var rate: Double?
    /// Also replays letters that were received after their `exp`; newer facts stay in force anyway.
    package var acceptsExpired: Bool
    /// Finds out what would happen to the letters, and changes nothing.
    package var isRehearsal: Bool
    package var batch: Int

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

    /// Letters in one transaction, small enough for an even rate.
    var pacedBatch: Int {
        guard let rate else { return batch }
        return Int(min(Double(batch), max(1, rate / 4)))
    }

    /// When the run may continue after `done` letters; nil: immediately.
    func resumption(after done: Int, since start: ContinuousClock.Instant) -> ContinuousClock.Instant? {
        guard let rate else { return nil }
        return start + .seconds(Double(done) / rate)
    }
}

/// The result for one dead letter that was replayed, or would be.
package struct ReplayResult: Sendable, Equatable {
    package let id: Int64
    /// Why it was kept until then.
    package let formerReason: DeadLetterReason
    package let end: End
    /// The live sessions that its notification ended.
    package let sessionsEnded: Int

    package enum End: Sendable, Equatable {
        /// Its notification is recorded, with its effects.
        case replayed(NotificationOutcome)
        /// It stays open: for this reason, in this sentence.
        case dead(DeadLetterReason, detail: String)
    }
}

/// The results of a run so far, or of a rehearsal.
package struct ReplayReport: Sendable, Equatable {
    /// The former reason of a letter, and its result.
    package struct Change: Sendable, Hashable {
        package let from: DeadLetterReason
        /// The effect of its notification; nil: it stays open.
        package let outcome: NotificationOutcome?
        /// Why it stays open; nil: it does not.
        package let reason: DeadLetterReason?
    }

    /// Letters that matched when the run began.
    package let matched: Int
    /// Why Apple's current keys could not be used; nil: they could, or were not needed.
    package let keyProblem: String?
    package private(set) var changes: [Change: Int] = [:]
    /// For each change that leaves letters open, the sentence of the first.
    package private(set) var details: [Change: String] = [:]
    package private(set) var sessionsEnded = 0

    init(matched: Int, keyProblem: String?) {
        self.matched = matched
        self.keyProblem = keyProblem
    }

    package var replayed: Int { count { $0.outcome != nil } }

    /// Letters that stay open.
    package var dead: Int { count { $0.outcome == nil } }

    /// Letters that matched and were resolved by another operator before the run reached them.
    package var passedOver: Int { max(0, matched - replayed - dead) }

    mutating func add(_ results: [ReplayResult]) {
        for result in results {
            let change: Change
            switch result.end {
            case .replayed(let outcome):
                change = Change(from: result.formerReason, outcome: outcome, reason: nil)
            case .dead(let reason, let detail):
                change = Change(from: result.formerReason, outcome: nil, reason: reason)
                details[change] = details[change] ?? detail
            }
            changes[change, default: 0] += 1
            sessionsEnded += result.sessionsEnded
        }
    }

    private func count(_ isCounted: (Change) -> Bool) -> Int {
        changes.reduce(0) { $0 + (isCounted($1.key) ? $1.value : 0) }
    }
}
