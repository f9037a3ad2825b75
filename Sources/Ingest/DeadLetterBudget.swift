import AppleTokens
import Synchronization

/// How many dead letters may still be opened, by reason.
///
/// The open letters are counted in the database from time to time, and those that this process adds are counted in
/// between; with several daemons the limit is therefore met to within what they add in that time.
final class DeadLetterBudget: Sendable {
    /// Open letters without a verified signature: anybody can cause them, so few are kept.
    static let unverifiedLimit = 1_000

    private struct State {
        var open: [DeadLetterReason: Int] = [:]
        /// Reserved, and not yet known to be in the database or not.
        var pending: [DeadLetterReason: Int] = [:]
        /// What a count that is under way may not see: pending when it began, or reserved since.
        var unseen: [DeadLetterReason: Int] = [:]
    }

    private let limit: Int
    private let state = Mutex(State())

    init(limit: Int) {
        self.limit = max(limit, 0)
    }

    /// Reserves room for one letter; false when its reason is at the limit.
    func reserve(_ reason: DeadLetterReason) -> Bool {
        let limit = reason == .keysUnavailable ? min(limit, Self.unverifiedLimit) : limit
        return state.withLock { state in
            let open = state.open[reason, default: 0]
            guard open < limit else { return false }
            state.open[reason] = open + 1
            state.pending[reason, default: 0] += 1
            state.unseen[reason, default: 0] += 1
            return true
        }
    }

    /// A reservation became a new letter.
    func kept(_ reason: DeadLetterReason) {
        state.withLock { $0.pending[reason] = max(0, $0.pending[reason, default: 0] - 1) }
    }

    /// Gives back a reservation that became no new letter.
    func release(_ reason: DeadLetterReason) {
        state.withLock { state in
            state.pending[reason] = max(0, state.pending[reason, default: 0] - 1)
            state.open[reason] = max(0, state.open[reason, default: 0] - 1)
            state.unseen[reason] = max(0, state.unseen[reason, default: 0] - 1)
        }
    }

    /// The database is about to be asked how many are open.
    func countingBegan() {
        state.withLock { $0.unseen = $0.pending }
    }

    /// Takes over what the database counted since ``countingBegan()``. What the count may have missed is added: rather one
    /// letter too few for a while than one too many.
    func counted(_ open: [DeadLetterReason: Int]) {
        state.withLock { $0.open = open.merging($0.unseen, uniquingKeysWith: +) }
    }
}
