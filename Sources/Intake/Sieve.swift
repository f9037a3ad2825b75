import AccountStore
import Postgres

/// Stores a batch of which something can't be stored at present, by parts: one that PostgreSQL refuses, or that waits for
/// somebody's lock, holds up no other.
struct Sieve {
    /// So many parts have to fail, and none to be stored, for the fault to be the server's.
    static let patience = 4
    /// Into how many parts one that failed is divided. A part may take as long to fail as a lock is waited for, so there
    /// are few steps down to the one that is the matter.
    private static let divisor = 16

    /// How many are stored.
    private(set) var stored = 0
    /// Where those stand in the batch that were tried alone and failed.
    private(set) var refused: Set<Int> = []
    /// Where those stand of which nothing is known, since the connection or the server is the matter.
    private(set) var untried: Set<Int> = []
    /// The first reason why one was refused.
    private(set) var refusal: PostgresError?
    /// Why not all of them were tried; nil: they were.
    private(set) var failure: PostgresError?

    /// Stores what can be stored.
    ///
    /// - Parameters:
    ///   - error: why the batch as a whole could not be stored, when that was tried already.
    ///   - isTakingOthers: whether the server is known to take others, so that it can't be the matter.
    ///   - attempt: stores some of the batch in one transaction, and sees to what follows from that.
    init(
        _ batch: [Submission],
        after error: PostgresError? = nil,
        isTakingOthers: Bool,
        attempt: ([Submission]) async -> PostgresError?
    ) async {
        var parts = batch.isEmpty ? [] : [batch.indices]
        var failures = 0
        var known = error
        while let part = parts.first {
            parts.removeFirst()
            let result: PostgresError?
            if let error = known.take() {
                result = error
            } else {
                result = await attempt(Array(batch[part]))
            }
            guard let error = result else {
                stored += part.count
                continue
            }
            failures += 1
            let isServers = stored == 0 && !isTakingOthers && failures >= Self.patience
            guard error.maySpareOthers, !isServers, !Task.isCancelled else {
                failure = error
                untried = Set(parts.joined()).union(part)
                return
            }
            refusal = refusal ?? error
            guard part.count > 1 else {
                refused.insert(part.lowerBound)
                continue
            }
            let size = (part.count + Self.divisor - 1) / Self.divisor
            let smaller = stride(from: part.lowerBound, to: part.upperBound, by: size).map { start in
                start..<min(start + size, part.upperBound)
            }
            // In any order, and after the larger ones, so that it isn't always the same ones that try the patience.
            parts += smaller.shuffled()
        }
    }
}

extension PostgresError {
    /// Whether what failed may lie with one notification of several: refused in a trigger, say, or waiting for a row that
    /// an application has locked. It may lie with the server as well, such as a missing right.
    var maySpareOthers: Bool {
        switch code {
        case .timedOut: return true
        case .server: break
        case .connectionFailed, .connectionLost, .cancelled, .decoding, .migration, .usage: return false
        }
        if isConflict || sqlState == .lockNotAvailable || sqlState == .queryCanceled { return true }
        // Read-only, as a standby is.
        return !isRetryable && sqlState?.classCode != "25"
    }
}
