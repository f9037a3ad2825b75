import Synchronization

/// A bounded queue from any number of event loops to one writer.
///
/// The writer takes what is there as soon as it is free: nothing is delayed for the sake of a larger batch, and under
/// load the batch grows by itself while the one before is being committed.
final class IntakeQueue: Sendable {
    /// What became of a submission.
    enum Admission: Sendable {
        case accepted
        /// The limit on submissions or on bytes is reached.
        case full
        /// Nothing can be stored at present.
        case paused
        case closed
    }

    private enum Phase {
        /// Submissions are taken in, the writer is busy.
        case open
        /// Submissions are taken in, the writer waits for one.
        case awaited(CheckedContinuation<Void, Never>)
        /// Nothing can be stored at present; the writer may wait already for the time after that.
        case paused(CheckedContinuation<Void, Never>?)
        /// The writer finishes what is there.
        case closed
    }

    private struct State {
        var phase = Phase.paused(nil)
        var waiting: [Submission] = []
        /// Where the first submission stands that was not taken yet.
        var head = 0
        /// Submissions that the writer works on.
        var taken = TakenSubmissions()
        /// Bytes in all submissions that wait or that the writer works on.
        var bytes = 0
        /// The number of the newest submission.
        var lastNumber: UInt64 = 0

        var count: Int { waiting.count - head }

        mutating func add(_ submission: Submission) {
            lastNumber += 1
            var submission = submission
            submission.number = lastNumber
            bytes += submission.bytes
            waiting.append(submission)
        }

        /// Takes the oldest: at most `limit`, of at most `limitBytes` if there are several, with numbers up to `last`.
        mutating func take(_ limit: Int, bytes limitBytes: Int = .max, upTo last: UInt64 = .max) -> [Submission] {
            var (size, count) = (0, 0)
            for submission in waiting[head...].prefix(limit) {
                // Without what the request takes outside of the batch.
                size += submission.bytes - Submission.overhead
                guard submission.number <= last, count == 0 || size <= limitBytes else { break }
                count += 1
            }
            let taken = Array(waiting[head..<head + count])
            self.taken.taken(taken)
            head += taken.count
            // What was taken is let go of, also by a queue that is never empty; what waits is moved once in its life or
            // less on average.
            if head >= self.count {
                waiting.removeFirst(head)
                head = 0
            }
            return taken
        }
    }

    /// The limit on a batch of several. Its parameters and libpq's buffers take the same memory several times.
    private static let batchBytes = 1 << 20

    private let limit: Int
    private let byteLimit: Int
    private let state = Mutex(State())

    /// A queue of at most `limit` submissions. It is paused until the writer resumes it.
    ///
    /// - Parameter bytes: the limit on the bytes of all submissions that wait or that the writer works on.
    init(limit: Int, bytes: Int = .max) {
        self.limit = max(limit, 1)
        self.byteLimit = bytes
    }

    /// How many wait.
    var depth: Int { state.withLock { $0.count } }

    /// Bytes in all submissions that wait or that the writer works on.
    var bytes: Int { state.withLock { $0.bytes } }

    /// The number of the newest submission.
    var lastNumber: UInt64 { state.withLock { $0.lastNumber } }

    /// Whether what comes in can be stored.
    var isServed: Bool {
        state.withLock { state in
            switch state.phase {
            case .open, .awaited: true
            case .paused, .closed: false
            }
        }
    }

    /// Whether the process is ending.
    var isClosed: Bool {
        state.withLock { state in
            switch state.phase {
            case .open, .awaited, .paused: false
            case .closed: true
            }
        }
    }

    /// Adds a submission; wakes the writer if it waits.
    func submit(_ submission: Submission) -> Admission {
        let (admission, writer) = state.withLock { state -> (Admission, CheckedContinuation<Void, Never>?) in
            switch state.phase {
            case .open, .awaited:
                guard state.count < limit, state.bytes + submission.bytes <= byteLimit else { return (.full, nil) }
                state.add(submission)
                guard case .awaited(let writer) = state.phase else { return (.accepted, nil) }
                state.phase = .open
                return (.accepted, writer)
            case .paused:
                return (.paused, nil)
            case .closed:
                return (.closed, nil)
            }
        }
        writer?.resume()
        return admission
    }

    /// The next batch, of one to `limit` submissions; nil when the queue is closed and empty. For the one writer.
    func next(atMost limit: Int) async -> [Submission]? {
        while true {
            let batch = waiting(atMost: limit)
            if !batch.isEmpty { return batch }
            if isClosed { return nil }
            await withCheckedContinuation { writer in
                let isWanted = state.withLock { state in
                    switch state.phase {
                    case .open where state.count == 0:
                        state.phase = .awaited(writer)
                        return false
                    case .paused(nil):
                        state.phase = .paused(writer)
                        return false
                    case .open, .closed:
                        return true
                    case .awaited, .paused(.some):
                        preconditionFailure("a queue has one writer")
                    }
                }
                if isWanted { writer.resume() }
            }
        }
    }

    /// What waits now, at most `limit` submissions; empty when nothing does. For the one writer, while it doesn't wait.
    func waiting(atMost limit: Int) -> [Submission] {
        state.withLock { $0.take(limit, bytes: Self.batchBytes) }
    }

    /// Takes what waits with numbers up to `number`, at most `limit` submissions.
    func waiting(atMost limit: Int, upTo number: UInt64) -> [Submission] {
        state.withLock { $0.take(limit, bytes: Self.batchBytes, upTo: number) }
    }

    // MARK: - Submissions that the writer works on

    /// The writer finished these submissions.
    ///
    /// - Returns: the answers that were not given early.
    func finished(_ answers: [(Submission, Answer)]) -> [(Submission, Answer)] {
        state.withLock { state in
            answers.filter { submission, _ in
                guard let isUnanswered = state.taken.finished(submission) else { return false }
                state.bytes -= submission.bytes
                return isUnanswered
            }
        }
    }

    /// Submissions up to a number that the writer works on and that have no answer.
    func held(upTo number: UInt64) -> [Submission] {
        state.withLock { $0.taken.open(upTo: number) }
    }

    /// Submissions are answered while the writer works on them.
    ///
    /// - Returns: the answers of those that have none yet.
    func answeredEarly(_ answers: [(Submission, Answer)]) -> [(Submission, Answer)] {
        state.withLock { state in answers.filter { state.taken.answeredEarly($0.0) } }
    }

    /// What comes in can be stored.
    func resume() {
        state.withLock { state in
            switch state.phase {
            case .paused(nil): state.phase = .open
            case .paused(.some(let writer)): state.phase = .awaited(writer)
            case .open, .awaited, .closed: break
            }
        }
    }

    /// Nothing can be stored: what waits comes back, and nothing more is taken in until ``resume()``.
    func pause() -> [Submission] {
        state.withLock { state in
            switch state.phase {
            case .open: state.phase = .paused(nil)
            case .awaited(let writer): state.phase = .paused(writer)
            case .paused, .closed: break
            }
            return state.take(.max)
        }
    }

    /// The process is ending: nothing more is taken in; the writer finishes what is there.
    func close() {
        let writer = state.withLock { state -> CheckedContinuation<Void, Never>? in
            defer { state.phase = .closed }
            switch state.phase {
            case .awaited(let writer), .paused(.some(let writer)): return writer
            case .open, .paused(nil), .closed: return nil
            }
        }
        writer?.resume()
    }
}
