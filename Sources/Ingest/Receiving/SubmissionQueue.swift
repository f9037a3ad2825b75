import Postgres
import Synchronization

/// A bounded queue from any number of event loops to one writer.
///
/// The writer takes what is there as soon as it is free: no batch waits to grow, and under load batches grow by themselves
/// while the one before commits. The queue contains the ``WriterState``, so that a submission is accepted or refused, and the
/// state changes, under one lock: nothing waits in the queue while it can't be stored.
final class SubmissionQueue: Sendable {
    enum Admission: Sendable {
        case accepted
        /// The limit on submissions or on bytes is reached.
        case full
        /// Nothing can be stored at present.
        case paused
        case closed
    }

    /// A submission that the writer works on.
    private struct Taken {
        let submission: Submission
        /// It was answered from the spool, because PostgreSQL delays the writer. The writer's response is dropped.
        var isAnswered = false
    }

    private struct State {
        var writer: WriterState<PostgresConnection>
        /// The writer, if it waits for a submission.
        var waiter: CheckedContinuation<Void, Never>?
        var waiting: [Submission] = []
        /// The position of the first submission that was not taken.
        var head = 0
        var taken: [UInt64: Taken] = [:]
        /// Bytes of all submissions that wait or that the writer works on.
        var bytes = 0
        var lastNumber: UInt64 = 0

        var count: Int { waiting.count - head }

        mutating func add(_ submission: Submission) {
            lastNumber += 1
            var submission = submission
            submission.number = lastNumber
            bytes += submission.bytes
            waiting.append(submission)
        }

        /// Takes the oldest submissions with numbers up to `last`: at most `limit`, and several of at most `limitBytes`.
        mutating func take(_ limit: Int, bytes limitBytes: Int = .max, upTo last: UInt64 = .max) -> [Submission] {
            var (size, count) = (0, 0)
            for submission in waiting[head...].prefix(limit) {
                size += submission.work.token.count
                guard submission.number <= last, count == 0 || size <= limitBytes else { break }
                count += 1
            }
            let batch = Array(waiting[head..<head + count])
            for submission in batch { taken[submission.number] = Taken(submission: submission) }
            head += count
            // Releases what was taken, also if the queue is never empty. A submission is moved at most once on average.
            if head >= self.count {
                waiting.removeFirst(head)
                head = 0
            }
            return batch
        }
    }

    /// The limit on a batch of several. Its parameters and libpq's buffers take the same memory several times.
    private static let batchBytes = 1 << 20

    private let limit: Int
    private let byteLimit: Int
    private let state: Mutex<State>

    /// - Parameter bytes: the limit on the bytes of all submissions that wait or that the writer works on.
    init(limit: Int, bytes: Int = .max, hasSpool: Bool) {
        self.limit = max(limit, 1)
        self.byteLimit = bytes
        state = Mutex(State(writer: WriterState(hasSpool: hasSpool)))
    }

    var depth: Int { state.withLock { $0.count } }

    var bytes: Int { state.withLock { $0.bytes } }

    var lastNumber: UInt64 { state.withLock { $0.lastNumber } }

    var isClosed: Bool { writer { $0.admission == .closed } }

    /// Asks the writer's state.
    func writer<R: Sendable>(_ question: (WriterState<PostgresConnection>) -> R) -> R {
        state.withLock { question($0.writer) }
    }

    /// Gives an input to the writer's state.
    ///
    /// - Returns: the action, and the submissions that can't be stored any more: answer them.
    func update<R: Sendable>(_ input: (inout WriterState<PostgresConnection>) -> R) -> (
        action: R, refused: [Submission]
    ) {
        let (result, waiter) = state.withLock { state in
            let action = input(&state.writer)
            switch state.writer.admission {
            case .open: return ((action, [Submission]()), CheckedContinuation<Void, Never>?.none)
            case .paused: return ((action, state.take(.max)), nil)
            case .closed: return ((action, []), state.waiter.take())
            }
        }
        waiter?.resume()
        return result
    }

    func submit(_ submission: Submission) -> Admission {
        let (admission, waiter) = state.withLock { state -> (Admission, CheckedContinuation<Void, Never>?) in
            switch state.writer.admission {
            case .open:
                guard state.count < limit, state.bytes + submission.bytes <= byteLimit else { return (.full, nil) }
                state.add(submission)
                return (.accepted, state.waiter.take())
            case .paused: return (.paused, nil)
            case .closed: return (.closed, nil)
            }
        }
        waiter?.resume()
        return admission
    }

    /// The next batch, of one to `limit` submissions; nil when the queue is closed and empty. For the one writer.
    func next(atMost limit: Int) async -> [Submission]? {
        while true {
            // Under one lock, so that nothing that is accepted before the end stays in the queue.
            let (batch, isClosed) = state.withLock { state in
                (state.take(limit, bytes: Self.batchBytes), state.writer.admission == .closed)
            }
            if !batch.isEmpty { return batch }
            if isClosed { return nil }
            await withCheckedContinuation { waiter in
                let mustWait = state.withLock { state in
                    precondition(state.waiter == nil, "a queue has one writer")
                    guard state.count == 0, state.writer.admission != .closed else { return false }
                    state.waiter = waiter
                    return true
                }
                if !mustWait { waiter.resume() }
            }
        }
    }

    /// Takes the submissions that wait now with numbers up to `number`, at most `limit`.
    func waiting(atMost limit: Int, upTo number: UInt64 = .max) -> [Submission] {
        state.withLock { $0.take(limit, bytes: Self.batchBytes, upTo: number) }
    }

    // MARK: - Submissions that the writer works on

    /// The writer finished these submissions.
    ///
    /// - Returns: the responses that were not given early.
    func finished(_ responses: [(Submission, IngestResponse)]) -> [(Submission, IngestResponse)] {
        state.withLock { state in
            responses.filter { submission, _ in
                guard let taken = state.taken.removeValue(forKey: submission.number) else { return false }
                state.bytes -= submission.bytes
                return !taken.isAnswered
            }
        }
    }

    /// Submissions up to a number that the writer works on and that have no response.
    func held(upTo number: UInt64) -> [Submission] {
        let taken = state.withLock { $0.taken.values.filter { !$0.isAnswered && $0.submission.number <= number } }
        return taken.map(\.submission).sorted { $0.number < $1.number }
    }

    /// Submissions are answered while the writer works on them.
    ///
    /// - Returns: the responses to submissions that have none yet.
    func answeredEarly(_ responses: [(Submission, IngestResponse)]) -> [(Submission, IngestResponse)] {
        state.withLock { state in
            responses.filter { submission, _ in
                guard let taken = state.taken[submission.number], !taken.isAnswered else { return false }
                state.taken[submission.number]?.isAnswered = true
                return true
            }
        }
    }
}
