import Spool
import Synchronization

/// Tokens that are durable already, by their SHA-256: one that comes again needs no further write.
///
/// In memory and bounded: a token that is not remembered is written once more, which changes nothing. A dead letter's token
/// is not durable as a notification: under another policy it may be one. Each kind has its own memory, so that none takes
/// room from another.
final class DurableTokens: Sendable {
    /// Tokens with a verified signature that are remembered at least, once there were so many.
    static let limit = 16_384

    /// The digests that were added or asked for last: between one and two times as many as the limit.
    private struct Memory {
        let limit: Int
        var young: Set<[UInt8]> = []
        var old: Set<[UInt8]> = []

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
    }

    private struct State {
        var memories: [Spool.Share: Memory] = [:]
        var losses = 0
    }

    private let state = Mutex(State())

    func contains(_ digest: [UInt8], as kind: Spool.Share) -> Bool {
        state.withLock { $0.memories[kind]?.contains(digest) ?? false }
    }

    /// A token is durable from here on: call it after the commit, or the spool's fsync.
    func insert(_ digest: [UInt8], as kind: Spool.Share) {
        let limit = kind == .unverified ? DeadLetterBudget.unverifiedLimit : Self.limit
        state.withLock { $0.memories[kind, default: Memory(limit: limit)].insert(digest) }
    }

    /// Records of a kind may be gone, or resolved: their tokens are written again when they come again.
    func forget(_ kind: Spool.Share) {
        state.withLock { $0.memories[kind] = nil }
    }

    /// Records of any kind may be gone, or would be judged differently.
    func forgetAll() {
        state.withLock { $0.memories = [:] }
    }

    /// Forgets everything if the spool lost files since the last call.
    func spoolLost(_ losses: Int) {
        state.withLock { if $0.losses != losses { $0 = State(losses: losses) } }
    }
}
