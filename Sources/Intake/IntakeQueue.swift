import Synchronization

/// A bounded queue from any number of event loops to one writer.
///
/// The writer takes what is there as soon as it is free: nothing is delayed for the sake of a larger batch, and under
/// load the batch grows by itself while the one before is being committed.
final class IntakeQueue: Sendable {
    /// What became of a submission.
    enum Admission: Sendable {
        case accepted
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

        var count: Int { waiting.count - head }

        mutating func take(_ limit: Int) -> [Submission] {
            let taken = Array(waiting[head..<head + min(limit, count)])
            head += taken.count
            // What was taken is let go of, also by a queue that is never empty; what waits is moved once in its life or
            // less on average.
            if head >= count {
                waiting.removeFirst(head)
                head = 0
            }
            return taken
        }
    }

    private let limit: Int
    private let state = Mutex(State())

    /// A queue that holds at most `limit` submissions; it is paused until the writer resumes it.
    init(limit: Int) {
        self.limit = max(limit, 1)
    }

    /// How many wait.
    var depth: Int { state.withLock { $0.count } }

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
            case .open:
                guard state.count < limit else { return (.full, nil) }
                state.waiting.append(submission)
                return (.accepted, nil)
            case .awaited(let writer):
                state.waiting.append(submission)
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
            let batch = state.withLock { $0.take(limit) }
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
        state.withLock { $0.take(limit) }
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
