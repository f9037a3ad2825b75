import AccountStore
import Synchronization

/// Tokens that are durable already, by their SHA-256: one that comes again needs no further write.
///
/// In memory only, and bounded: what doesn't fit, or came before a restart, is written once more, which changes nothing.
/// Tokens without a verified signature have a memory of their own, so that they take no room from the others.
final class DurableTokens: Sendable {
    /// Tokens with a verified signature that are remembered at least, once there were so many.
    static let limit = 16_384

    /// The digests that were added or asked for last: between one and two times as many as the limit.
    private struct Memory {
        let limit: Int
        private var young: Set<[UInt8]> = []
        private var old: Set<[UInt8]> = []

        init(limit: Int) {
            self.limit = limit
        }

        mutating func insert(_ digest: [UInt8]) {
            if young.count >= limit { old = exchange(&young, with: []) }
            young.insert(digest)
        }

        mutating func contains(_ digest: [UInt8]) -> Bool {
            if young.contains(digest) { return true }
            guard old.contains(digest) else { return false }
            insert(digest)
            return true
        }

        mutating func removeAll() {
            self = Memory(limit: limit)
        }
    }

    private let memories = Mutex(
        (verified: Memory(limit: limit), unverified: Memory(limit: DeadLetterBudget.unverifiedLimit))
    )

    /// Whether a token is durable.
    func contains(_ digest: [UInt8], isVerified: Bool) -> Bool {
        memories.withLock { isVerified ? $0.verified.contains(digest) : $0.unverified.contains(digest) }
    }

    /// A token is durable from here on: call it after the commit, or the spool's fsync.
    func insert(_ digest: [UInt8], isVerified: Bool) {
        memories.withLock { isVerified ? $0.verified.insert(digest) : $0.unverified.insert(digest) }
    }

    /// Letters without a verified signature may have been resolved: their tokens are kept again when they come again.
    func forgetUnverified() {
        memories.withLock { $0.unverified.removeAll() }
    }

    /// What was durable may be lost, as when a file was damaged.
    func forgetAll() {
        memories.withLock { memories in
            memories.verified.removeAll()
            memories.unverified.removeAll()
        }
    }
}
