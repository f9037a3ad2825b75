import Dispatch
import Synchronization

/// The thread that works on the disk, one piece of work after the other, and the time that callers wait for it.
///
/// A disk may not answer for long, as a network file system whose server is away. A caller then gets an error, and further
/// callers immediately, until the disk has completed what it was given. The result of that is dropped.
final class SpoolThread: Sendable {
    let queue = DispatchQueue(label: "siwad.spool")
    private let directory: String
    private let patience: DispatchTimeInterval
    /// Pieces of work that no caller waits for any more and that have not ended.
    private let overdue = Atomic(0)

    /// - Parameters:
    ///   - directory: for the error.
    ///   - patience: how long a caller waits, from its call on.
    init(directory: String, patience: DispatchTimeInterval) {
        self.directory = directory
        self.patience = patience
    }

    /// - Throws: the error of `work`; `failed` if the disk does not answer.
    func run<R: Sendable>(
        _ work: @escaping @Sendable () throws(SpoolError) -> R
    ) async throws(SpoolError) -> R {
        let late = SpoolError(code: .failed, message: "the disk of the spool \(directory) does not answer")
        guard overdue.load(ordering: .relaxed) == 0 else { throw late }
        let result = await withCheckedContinuation {
            (continuation: CheckedContinuation<Result<R, SpoolError>, Never>) in
            let waiter = Waiter(continuation)
            queue.async {
                if !waiter.resume(Result(catching: work)) { self.overdue.subtract(1, ordering: .relaxed) }
            }
            DispatchQueue.global().asyncAfter(deadline: .now() + patience) {
                waiter.resume(.failure(late)) { self.overdue.add(1, ordering: .relaxed) }
            }
        }
        return try result.get()
    }
}

/// A caller that waits for the first of two results.
private final class Waiter<R: Sendable>: Sendable {
    private let continuation: Mutex<CheckedContinuation<Result<R, SpoolError>, Never>?>

    init(_ continuation: CheckedContinuation<Result<R, SpoolError>, Never>) {
        self.continuation = Mutex(continuation)
    }

    /// - Parameter isFirst: called, before the other result can come, if this result is the first.
    /// - Returns: whether it is.
    @discardableResult
    func resume(_ result: Result<R, SpoolError>, isFirst: () -> Void = {}) -> Bool {
        continuation.withLock { continuation in
            guard let waiting = continuation.take() else { return false }
            isFirst()
            waiting.resume(returning: result)
            return true
        }
    }
}
