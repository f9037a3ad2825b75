package import AccountStore
package import AppleTokens

/// What became of one dead letter that was replayed, or would become of it.
package struct LetterFate: Sendable, Equatable {
    /// Its number.
    package let id: Int64
    /// Why it was kept until then.
    package let formerReason: DeadLetterReason
    /// What became of it.
    package let end: End
    /// How many live sessions its notification ended.
    package let sessionsEnded: Int

    /// How an attempt ends.
    package enum End: Sendable, Equatable {
        /// Its notification is recorded, with its effects.
        case replayed(NotificationOutcome)
        /// It stays open: for this reason, in this sentence.
        case dead(DeadLetterReason, detail: String)
    }
}

/// What a run did so far, or what a rehearsal found.
package struct ReplayReport: Sendable, Equatable {
    /// From why a letter was kept to what became of it.
    package struct Change: Sendable, Hashable {
        /// Why it was kept.
        package let from: DeadLetterReason
        /// What its notification did; nil: it stays open.
        package let outcome: NotificationOutcome?
        /// Why it stays open; nil: it doesn't.
        package let reason: DeadLetterReason?
    }

    /// How many letters matched when the run began.
    package let matched: Int
    /// Why Apple's keys of today could not be used; nil: they could, or weren't needed.
    package let keyProblem: String?
    /// How many letters went which way.
    package private(set) var changes: [Change: Int] = [:]
    /// Of each change that leaves letters open, the sentence of the first.
    package private(set) var details: [Change: String] = [:]
    /// How many live sessions ended.
    package private(set) var sessionsEnded = 0

    /// The report of a run that is about to begin.
    init(matched: Int, keyProblem: String?) {
        self.matched = matched
        self.keyProblem = keyProblem
    }

    /// How many letters are done with.
    package var replayed: Int { count { $0.outcome != nil } }

    /// How many letters stay open.
    package var dead: Int { count { $0.outcome == nil } }

    /// How many letters of those that matched another operator, or nobody, has attended to.
    package var passedOver: Int { max(0, matched - replayed - dead) }

    /// Adds what became of some letters.
    mutating func add(_ fates: [LetterFate]) {
        for fate in fates {
            let change: Change
            switch fate.end {
            case .replayed(let outcome):
                change = Change(from: fate.formerReason, outcome: outcome, reason: nil)
            case .dead(let reason, let detail):
                change = Change(from: fate.formerReason, outcome: nil, reason: reason)
                details[change] = details[change] ?? detail
            }
            changes[change, default: 0] += 1
            sessionsEnded += fate.sessionsEnded
        }
    }

    private func count(_ isCounted: (Change) -> Bool) -> Int {
        changes.reduce(0) { $0 + (isCounted($1.key) ? $1.value : 0) }
    }
}
