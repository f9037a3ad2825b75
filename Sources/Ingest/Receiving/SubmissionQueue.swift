import AccountStore
import AppleTokens
import Basics
import JOSE
import Postgres
import Spool
import Synchronization

/// A notification or dead letter that waits to become durable, and the request that waits for it.
struct Submission: Sendable {
    /// Indirect, so that a queue of submissions moves few words each.
    indirect enum Work: Sendable {
        case notification(ReceivedNotification)
        /// `whenKept` is the response once it is durable: a letter without a verified signature is not acknowledged.
        case deadLetter(ReceivedDeadLetter, whenKept: IngestResponse)

        var token: [UInt8] {
            switch self {
            case .notification(let received): received.notification.token
            case .deadLetter(let received, _): received.letter.token
            }
        }

        var tokenDigest: [UInt8] {
            switch self {
            case .notification: SHA256.digest(token.span)
            case .deadLetter(let received, _): received.tokenDigest
            }
        }

        /// The part of the spool that it may use.
        var share: Spool.Share {
            switch self {
            case .notification: .notifications
            case .deadLetter(let received, _): received.share
            }
        }

        var responseWhenDurable: IngestResponse {
            switch self {
            case .notification: .acknowledged
            case .deadLetter(_, let response): response
            }
        }
    }

    let work: Work
    let sink: ResponseSink
    let ticket: UInt64
    /// Its number among all submissions of the queue, which assigns it.
    var number: UInt64 = 0

    /// The memory of a request in addition to its token: its claims and the buffers of its connection.
    static let overhead = 6 << 10

    /// The approximate memory of the request while it waits, in bytes.
    var bytes: Int { Self.overhead + work.token.count }
}

// MARK: - In the spool

extension SpoolRecord {
    /// The parts of a submission that are needed to judge it again.
    init(_ submission: Submission) {
        let (receivedAt, keyID) =
            switch submission.work {
            case .notification(let received): (received.receivedAt, String?.some(received.notification.keyID))
            case .deadLetter(let received, _): (received.receivedAt, received.letter.verifiedKeyID)
            }
        self.init(receivedAt: receivedAt.microseconds, keyID: keyID, body: submission.work.token)
    }

    /// The token in the body. A body without a token is never spooled; its bytes are taken as the token.
    var token: [UInt8] { (try? NotificationBody.token(in: body.span)) ?? body }
}

extension Submission {
    /// A record of the spool, which was answered when it was written.
    ///
    /// It is judged under the policy in force: a dead letter whose app is configured by now is a notification.
    init(_ record: SpoolRecord, judgedBy verifier: NotificationVerifier) {
        let (receivedAt, token) = (WallTime(microseconds: record.receivedAt), record.token)
        let letter: DeadLetter
        switch record.keyID.map({
            verifier.verify(token: token, authority: .record(keyID: $0), receivedAt: receivedAt, now: receivedAt)
        }) {
        case .verified(let notification):
            let received = ReceivedNotification(notification, receivedAt: receivedAt)
            self.init(work: .notification(received), sink: .none, ticket: 0)
            return
        case .deadLetter(let dead):
            letter = dead
        case .refused(let rejection):
            letter = DeadLetter(
                reason: .malformedClaims,
                detail: "It was acknowledged into the spool, and is refused since then: \(rejection.rawValue).",
                verifiedKeyID: record.keyID,
                token: token
            )
        case .needsKey, nil:
            letter = .keysUnavailable(token: token)
        }
        let received = ReceivedDeadLetter(letter, receivedAt: receivedAt)
        self.init(work: .deadLetter(received, whenKept: .acknowledged), sink: .none, ticket: 0)
    }
}

/// A bounded queue from any number of event loops to one writer.
///
/// The writer takes what is there as soon as it is free: no batch waits to grow, and under load batches grow by themselves
/// while the one before commits. The queue contains the ``WriterState``, so that a submission is accepted or refused, and the
/// state changes, under one lock: nothing waits in the queue while it can't be stored.
final class SubmissionQueue: Sendable {
    enum Admission: Sendable {
        case accepted
        case full
        case paused
        case closed
    }

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

    init(limit: Int, bytes: Int = .max, hasSpool: Bool) {
        self.limit = max(limit, 1)
        self.byteLimit = bytes
        state = Mutex(State(writer: WriterState(hasSpool: hasSpool)))
    }

    var depth: Int { state.withLock { $0.count } }

    var bytes: Int { state.withLock { $0.bytes } }

    var lastNumber: UInt64 { state.withLock { $0.lastNumber } }

    func writer<R: Sendable>(_ question: (WriterState<PostgresConnection>) -> R) -> R {
        state.withLock { question($0.writer) }
    }

    /// Gives an input to the writer's state. Answer the refused submissions, which can't be stored any more.
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

    func waiting(atMost limit: Int, upTo number: UInt64 = .max) -> [Submission] {
        state.withLock { $0.take(limit, bytes: Self.batchBytes, upTo: number) }
    }

    /// Submissions that were taken wait again, before all others.
    ///
    /// - Returns: false if the writer has no connection or may have ended: answer them.
    func putBack(_ batch: [Submission]) -> Bool {
        guard !batch.isEmpty else { return false }
        let (isBack, waiter) = state.withLock { state -> (Bool, CheckedContinuation<Void, Never>?) in
            guard state.writer.connection != nil, state.writer.admission == .open else { return (false, nil) }
            for submission in batch { state.taken[submission.number] = nil }
            state.waiting.replaceSubrange(..<state.head, with: batch.sorted { $0.number < $1.number })
            state.head = 0
            return (true, state.waiter.take())
        }
        waiter?.resume()
        return isBack
    }

    // MARK: - Submissions that the writer works on

    /// The writer finished these submissions. Returns the responses that were not given early.
    ///
    /// - Parameter connection: that of live traffic, if it stored them; nil if they came from the spool, or were not stored.
    func finished(
        _ responses: [(Submission, IngestResponse)],
        on connection: PostgresConnection? = nil
    ) -> [(Submission, IngestResponse)] {
        state.withLock { state in
            if let connection { state.writer.batchStored(on: connection) }
            return responses.filter { submission, _ in
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

    /// Submissions are answered while the writer works on them. Returns the responses to the ones that have none yet.
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
