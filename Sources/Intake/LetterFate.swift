public import AccountStore
public import AppleNotifications

/// What became of one dead letter that was replayed, or would become of it.
public struct LetterFate: Sendable, Equatable {
    /// Its number.
    public let id: Int64
    /// Why it was kept until then.
    public let formerReason: DeadLetterReason
    /// What became of it.
    public let end: End
    /// How many live sessions its notification ended.
    public let sessionsEnded: Int

    /// How an attempt ends.
    public enum End: Sendable, Equatable {
        /// Its notification is recorded, with its effects.
        case replayed(NotificationOutcome)
        /// It stays open: for this reason, in this sentence.
        case dead(DeadLetterReason, detail: String)
    }
}

/// What a run did so far, or what a rehearsal found.
public struct ReplayReport: Sendable, Equatable {
    /// From why a letter was kept to what became of it.
    public struct Change: Sendable, Hashable {
        /// Why it was kept.
        public let from: DeadLetterReason
        /// What its notification did; nil: it stays open.
        public let outcome: NotificationOutcome?
        /// Why it stays open; nil: it doesn't.
        public let reason: DeadLetterReason?
    }

    /// How many letters matched when the run began.
    public let matched: Int
    /// Why Apple's keys of today could not be used; nil: they could, or weren't needed.
    public let keyProblem: String?
    /// How many letters went which way.
    public private(set) var changes: [Change: Int] = [:]
    /// Of each change that leaves letters open, the sentence of the first.
    public private(set) var details: [Change: String] = [:]
    /// How many live sessions ended.
    public private(set) var sessionsEnded = 0

    /// The report of a run that is about to begin.
    init(matched: Int, keyProblem: String?) {
        self.matched = matched
        self.keyProblem = keyProblem
    }

    /// How many letters are done with.
    public var replayed: Int { count { $0.outcome != nil } }

    /// How many letters stay open.
    public var dead: Int { count { $0.outcome == nil } }

    /// How many letters of those that matched another operator, or nobody, has attended to.
    public var passedOver: Int { max(0, matched - replayed - dead) }

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
