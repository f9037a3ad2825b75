import AccountStore
import Postgres

/// Stores a batch of which something can't be stored at present, by parts: one that PostgreSQL refuses, or that waits for
/// somebody's lock, holds up no other.
struct Sieve {
    /// How long parts are tried of which none can be stored. What is refused fails at once, so that each is tried; what
    /// waits for a lock or for a server that hangs is given up, since meanwhile no lost connection is replaced.
    static let patience = Duration.seconds(10)
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
    ///   - patience: how long to go on without storing anything.
    ///   - attempt: stores some of the batch in one transaction, and sees to what follows from that.
    init(
        _ batch: [Submission],
        after error: PostgresError? = nil,
        patience: Duration = patience,
        attempt: ([Submission]) async -> PostgresError?
    ) async {
        var parts = batch.isEmpty ? [] : [batch.indices]
        var lastSuccess = ContinuousClock.now
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
                lastSuccess = .now
                continue
            }
            guard error.maySpareOthers, .now - lastSuccess < patience, !Task.isCancelled else {
                failure = error
                untried = Set(parts.joined()).union(part)
                return
            }
            guard part.count > 1 else {
                refusal = refusal ?? error
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
