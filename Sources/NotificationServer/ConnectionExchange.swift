import AppleTokens
import Ingest
import NIOCore

/// One connection's requests and answers: what is being read, which requests wait, and what may be written next.
///
/// No I/O, no clock, no bytes: inputs are what has happened, results are what to do about it. Answers leave in the
/// order of the requests, whatever the order in which they come.
struct ConnectionExchange {
    /// The side that reads.
    enum Reading: Equatable {
        /// TLS isn't ready.
        case handshaking(since: NIODeadline)
        /// Between two requests.
        case idle(since: NIODeadline)
        /// Something of a head has arrived.
        case head(since: NIODeadline)
        /// The youngest request waits for the rest of its body.
        case body(since: NIODeadline, count: Int, isLast: Bool)
        /// The body of a request that was answered already goes by.
        case skipping(since: NIODeadline, count: Int)
        /// Nothing more is read: the last request has come, or the stream can't be trusted any more.
        case ended
    }

    /// A request that isn't answered.
    struct Pending {
        /// How far it has come.
        enum Progress: Equatable {
            case receiving(awaitsContinue: Bool)
            case submitted(ticket: UInt64, since: NIODeadline)
            case decided(Outcome)
        }

        var progress: Progress
        let since: NIODeadline
        /// HEAD: its answer has no body.
        let omitsBody: Bool
    }

    /// The end of a connection.
    enum Ending: Equatable {
        case open
        /// The peer will send nothing more; it may still read.
        case peerFinished
        /// The last answer was written; the peer may still read it, and what it sends is dropped.
        case lingering(since: NIODeadline)
    }

    var reading: Reading
    var ending = Ending.open
    var pending = CircularBuffer<Pending>(initialCapacity: 1)
    private var firstSequence: UInt64 = 0
    var isDraining = false

    /// A connection that was accepted at `now`.
    init(isSecure: Bool, now: NIODeadline) {
        reading = isSecure ? .handshaking(since: now) : .idle(since: now)
    }

    /// More requests that wait than this are no longer taken. Reading stops much earlier, but what a peer sent before it
    /// finished is read in one go, however much it is.
    static let maximumPending = 4_096

    /// How many requests aren't answered.
    var pendingCount: Int { pending.count }

    /// A head has begun and hasn't ended.
    var awaitsHead: Bool {
        if case .head = reading { true } else { false }
    }

    /// Bytes are of no use any more.
    var ignoresInput: Bool {
        if case .lingering = ending { return true }
        return reading == .ended
    }
}

// MARK: - Reading

extension ConnectionExchange {
    /// What to do about a head.
    enum HeadAction: Equatable {
        /// Its body follows.
        case collect
        /// An answer is ready.
        case answer
        case ignore
    }

    /// What to do about a part of a body.
    enum BodyAction: Equatable {
        case collect
        case ignore
        /// An answer is ready and what was collected is of no use.
        case answer
        /// The connection is of no use.
        case close
    }

    /// TLS is ready.
    mutating func handshakeCompleted(now: NIODeadline) {
        if case .handshaking = reading {
            reading = .idle(since: now)
        }
    }

    /// Bytes came in.
    mutating func bytesArrived(now: NIODeadline) {
        switch reading {
        case .handshaking, .idle: reading = .head(since: now)
        case .head, .body, .skipping, .ended: break
        }
    }

    /// A head came in and was judged.
    mutating func headArrived(_ judgement: RequestInspection.Judgement, isHEAD: Bool, now: NIODeadline) -> HeadAction {
        guard !ignoresInput else { return .ignore }
        guard pending.count < Self.maximumPending else {
            reading = .ended
            return .ignore
        }
        if isDraining {
            reading = .ended
            return decideNew(.unavailable(.shuttingDown, retryAfterSeconds: 5), isHEAD, now)
        }
        switch judgement {
        case .accepted(let request):
            reading = .body(since: now, count: 0, isLast: request.isLast)
            pending.append(
                Pending(
                    progress: .receiving(awaitsContinue: request.expectsContinue),
                    since: now,
                    omitsBody: isHEAD
                )
            )
            return .collect
        case .refused(let error, let isLast):
            reading = isLast ? .ended : .skipping(since: now, count: 0)
            return decideNew(.protocolError(error), isHEAD, now)
        case .tooLarge:
            reading = .ended
            return decideNew(.refused(.bodyTooLarge), isHEAD, now)
        case .broken(let error):
            reading = .ended
            return decideNew(.protocolError(error), isHEAD, now)
        }
    }

    /// Part of a body came in.
    mutating func bodyArrived(_ bytes: Int, limit: Int) -> BodyAction {
        switch reading {
        case .body(let since, let count, let isLast):
            guard count + bytes <= limit else {
                reading = .ended
                decideYoungest(.refused(.bodyTooLarge))
                return .answer
            }
            reading = .body(since: since, count: count + bytes, isLast: isLast)
            return .collect
        case .skipping(let since, let count):
            guard count + bytes <= limit else {
                reading = .ended
                return .close
            }
            reading = .skipping(since: since, count: count + bytes)
            return .ignore
        case .handshaking, .idle, .head, .ended:
            return .ignore
        }
    }

    /// A request ended. The result is its number when the intake should have it.
    mutating func endArrived(now: NIODeadline) -> UInt64? {
        switch reading {
        case .body(_, _, let isLast):
            reading = isLast ? .ended : .idle(since: now)
            return firstSequence + UInt64(pending.count) - 1
        case .skipping:
            reading = .idle(since: now)
            return nil
        case .handshaking, .idle, .head, .ended:
            return nil
        }
    }

    /// What came in isn't HTTP. True when an answer is ready.
    mutating func parsingFailed(_ error: ProtocolError, now: NIODeadline) -> Bool {
        let was = reading
        reading = .ended
        switch was {
        case .handshaking, .idle, .head:
            _ = decideNew(.protocolError(error), false, now)
            return true
        case .body:
            decideYoungest(.protocolError(error))
            return true
        case .skipping, .ended:
            return false
        }
    }

    private mutating func decideNew(_ outcome: Outcome, _ isHEAD: Bool, _ now: NIODeadline) -> HeadAction {
        pending.append(Pending(progress: .decided(outcome), since: now, omitsBody: isHEAD))
        return .answer
    }

    private mutating func decideYoungest(_ outcome: Outcome) {
        guard !pending.isEmpty else { return }
        pending[pending.index(before: pending.endIndex)].progress = .decided(outcome)
    }
}

// MARK: - Answering

extension ConnectionExchange {
    /// What may be written.
    enum Writable: Equatable {
        /// `100 Continue` for the oldest request.
        case interim
        /// The answer to the oldest request, which came at `since`. `isLast`: none will follow.
        case answer(Outcome, since: NIODeadline, omitsBody: Bool, isLast: Bool)
    }

    /// The intake took request number `sequence` and will answer later.
    mutating func submitted(_ sequence: UInt64, ticket: UInt64, now: NIODeadline) {
        guard let index = index(of: sequence) else { return }
        pending[index].progress = .submitted(ticket: ticket, since: now)
    }

    /// Request number `sequence` has its answer.
    mutating func decided(_ sequence: UInt64, _ outcome: Outcome) {
        guard let index = index(of: sequence) else { return }
        pending[index].progress = .decided(outcome)
    }

    /// The next that may be written, in the order of the requests.
    mutating func nextWritable(now: NIODeadline) -> Writable? {
        guard let oldest = pending.first else { return nil }
        switch oldest.progress {
        case .receiving(awaitsContinue: true):
            pending[pending.startIndex].progress = .receiving(awaitsContinue: false)
            return .interim
        case .receiving, .submitted:
            return nil
        case .decided(let outcome):
            pending.removeFirst()
            firstSequence += 1
            if case .idle = reading {
                reading = isDraining && pending.isEmpty ? .ended : .idle(since: now)
            }
            let isLast = reading == .ended && pending.isEmpty
            return .answer(outcome, since: oldest.since, omitsBody: oldest.omitsBody, isLast: isLast)
        }
    }

    private func index(of sequence: UInt64) -> CircularBuffer<Pending>.Index? {
        guard sequence >= firstSequence, sequence < firstSequence + UInt64(pending.count) else { return nil }
        return pending.index(pending.startIndex, offsetBy: Int(sequence - firstSequence))
    }
}
