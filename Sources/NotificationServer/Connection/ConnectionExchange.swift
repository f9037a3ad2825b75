import AppleTokens
import Ingest
import NIOCore

/// The state machine of one connection: what is being read, which requests are pending, and what may be written next.
///
/// It has no I/O, clock or bytes. Inputs are events in the past tense, results are actions. Responses leave in the order
/// of the requests, although the decisions may arrive in another order.
struct ConnectionExchange {
    enum Reading: Equatable {
        case handshaking(since: NIODeadline)
        case idle(since: NIODeadline)
        case head(since: NIODeadline)
        /// The rest of the last request's body is still to arrive.
        case body(since: NIODeadline, count: Int, isLast: Bool)
        /// The rest of the body is discarded, because the request already has its response.
        case skipping(since: NIODeadline, count: Int)
        /// Nothing more is read: the last request has arrived, or the framing of the stream is uncertain.
        case ended
    }

    /// A request without a written response.
    struct Pending {
        enum Progress: Equatable {
            case receiving(awaitsContinue: Bool)
            case submitted(ticket: UInt64, since: NIODeadline)
            case decided(Outcome)
        }

        var progress: Progress
        let since: NIODeadline
        /// True for HEAD.
        let omitsBody: Bool
    }

    enum Ending: Equatable {
        case open
        /// The peer has closed its sending side; it may still read.
        case peerFinished
        /// The last response was written; the peer may still read it, and its input is discarded.
        case lingering(since: NIODeadline)
    }

    private(set) var reading: Reading
    private(set) var ending = Ending.open
    private var pending = CircularBuffer<Pending>(initialCapacity: 1)
    private var firstSequence: UInt64 = 0
    private var isDraining = false

    init(isSecure: Bool, now: NIODeadline) {
        reading = isSecure ? .handshaking(since: now) : .idle(since: now)
    }

    /// Requests beyond this number end the connection. Reading pauses much earlier, but the bytes that a peer sent before
    /// it closed its sending side arrive in one read.
    static let maximumPending = 4_096

    var pendingCount: Int { pending.count }

    var awaitsHead: Bool {
        if case .head = reading { true } else { false }
    }

    /// True once input is discarded.
    var ignoresInput: Bool {
        if case .lingering = ending { return true }
        return reading == .ended
    }

    /// True once all responses are written and nothing more is read.
    var isFinished: Bool {
        reading == .ended && pending.isEmpty
    }
}

// MARK: - Reading

extension ConnectionExchange {
    enum HeadAction: Equatable {
        case collect
        case respond
        case ignore
    }

    enum BodyAction: Equatable {
        case collect
        case ignore
        /// Discard the collected body and write the response.
        case respond
        case close
    }

    mutating func handshakeCompleted(now: NIODeadline) {
        if case .handshaking = reading {
            reading = .idle(since: now)
        }
    }

    mutating func bytesArrived(now: NIODeadline) {
        switch reading {
        case .handshaking, .idle: reading = .head(since: now)
        case .head, .body, .skipping, .ended: break
        }
    }

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
            let progress = Pending.Progress.receiving(awaitsContinue: request.expectsContinue)
            pending.append(Pending(progress: progress, since: now, omitsBody: isHEAD))
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

    mutating func bodyArrived(_ bytes: Int, limit: Int) -> BodyAction {
        switch reading {
        case .body(let since, let count, let isLast):
            guard count + bytes <= limit else {
                reading = .ended
                decideLast(.refused(.bodyTooLarge))
                return .respond
            }
            reading = .body(since: since, count: count + bytes, isLast: isLast)
            return .collect
        case .skipping(let since, let count):
            guard count + bytes <= limit else {
                reading = .ended
                // Requests before the refused one may wait for their responses, which end the connection.
                return pending.isEmpty ? .close : .ignore
            }
            reading = .skipping(since: since, count: count + bytes)
            return .ignore
        case .handshaking, .idle, .head, .ended:
            return .ignore
        }
    }

    /// Returns the number of the request if the receiver should get its body.
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

    /// The input is not HTTP. Returns true if a response is ready.
    mutating func parsingFailed(_ error: ProtocolError, now: NIODeadline) -> Bool {
        let previous = reading
        reading = .ended
        switch previous {
        case .handshaking, .idle, .head:
            _ = decideNew(.protocolError(error), false, now)
            return true
        case .body:
            decideLast(.protocolError(error))
            return true
        case .skipping, .ended:
            return false
        }
    }

    private mutating func decideNew(_ outcome: Outcome, _ isHEAD: Bool, _ now: NIODeadline) -> HeadAction {
        pending.append(Pending(progress: .decided(outcome), since: now, omitsBody: isHEAD))
        return .respond
    }

    private mutating func decideLast(_ outcome: Outcome) {
        guard !pending.isEmpty else { return }
        pending[pending.index(before: pending.endIndex)].progress = .decided(outcome)
    }
}

// MARK: - Responding

extension ConnectionExchange {
    enum Writable: Equatable {
        /// `100 Continue` for the oldest request.
        case interim
        /// The response to the oldest request, which arrived at `since`. `isLast`: no other response follows.
        case response(Outcome, since: NIODeadline, omitsBody: Bool, isLast: Bool)
    }

    /// The receiver accepted request number `sequence` and will deliver its decision later.
    mutating func submitted(_ sequence: UInt64, ticket: UInt64, now: NIODeadline) {
        guard let index = index(of: sequence) else { return }
        pending[index].progress = .submitted(ticket: ticket, since: now)
    }

    mutating func decided(_ sequence: UInt64, _ outcome: Outcome) {
        guard let index = index(of: sequence) else { return }
        pending[index].progress = .decided(outcome)
    }

    /// Removes and returns what may be written next; `nil` if the oldest request has no outcome yet.
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
            return .response(outcome, since: oldest.since, omitsBody: oldest.omitsBody, isLast: isFinished)
        }
    }

    private func index(of sequence: UInt64) -> CircularBuffer<Pending>.Index? {
        guard sequence >= firstSequence, sequence < firstSequence + UInt64(pending.count) else { return nil }
        return pending.index(pending.startIndex, offsetBy: Int(sequence - firstSequence))
    }
}

// MARK: - Ending

extension ConnectionExchange {
    /// The action after the peer has finished, or after a shutdown began.
    enum EndAction: Equatable {
        /// Write what is ready; other responses may follow later.
        case respond
        /// Nothing is pending: close the sending side.
        case finish
        case close
    }

    struct Overdue: Equatable {
        var closes = false
        var finishes = false
        /// A response may be ready.
        var responds = false
        /// Tickets of requests that no longer wait for the receiver.
        var abandoned: [UInt64] = []
    }

    /// The order in which connections are closed when there are too many: the smallest first. A later start ranks higher,
    /// because a connection that was just accepted must have the time to send its request.
    enum EvictionPriority: Comparable {
        /// No request is arriving, and none has been for at least ``grace``.
        case silent(since: NIODeadline)
        /// A request is arriving, or was less than ``grace`` ago.
        case active(since: NIODeadline)
        /// A request waits for its response.
        case waiting
    }

    static let grace = TimeAmount.seconds(1)

    func evictionPriority(now: NIODeadline) -> EvictionPriority {
        if case .lingering(let since) = ending { return .silent(since: since) }
        switch reading {
        case .body(let since, _, _):
            return pending.count > 1 ? .waiting : .active(since: since)
        case .head(let since), .skipping(let since, _):
            return pending.isEmpty ? .active(since: since) : .waiting
        case .handshaking(let since), .idle(let since):
            guard pending.isEmpty else { return .waiting }
            return now - since < Self.grace ? .active(since: since) : .silent(since: since)
        case .ended:
            return .waiting
        }
    }

    mutating func peerFinished(now: NIODeadline) -> EndAction {
        if case .lingering = ending { return .close }
        ending = .peerFinished
        if case .body = reading {
            _ = parsingFailed(.malformedRequest, now: now)
        } else {
            reading = .ended
        }
        return pending.isEmpty ? .close : .respond
    }

    /// The server shuts down: requests that have begun get their response, later ones are refused.
    mutating func drainingBegan() -> EndAction {
        isDraining = true
        switch reading {
        case .handshaking:
            return .close
        case .idle:
            guard pending.isEmpty else { return .respond }
            reading = .ended
            return .finish
        case .head, .body, .skipping, .ended:
            return .respond
        }
    }

    mutating func lingeringBegan(now: NIODeadline) {
        ending = .lingering(since: now)
    }

    /// The connection is closed. Returns the tickets of the requests that the receiver has.
    mutating func closed() -> [UInt64] {
        let tickets = pending.compactMap { request in
            if case .submitted(let ticket, _) = request.progress { ticket } else { nil }
        }
        reading = .ended
        pending.removeAll()
        return tickets
    }

    mutating func timePassed(now: NIODeadline, limits: ServerLimits) -> Overdue {
        var overdue = Overdue()
        if case .lingering(let since) = ending {
            overdue.closes = now - since >= limits.lingerDeadline
            return overdue
        }
        if pending.count >= limits.pipelined { deferDeadlines(now: now) }
        switch reading {
        case .handshaking(let since):
            overdue.closes = now - since >= limits.headDeadline
        case .idle(let since):
            // A shutdown may have begun while the rest of a refused request was still arriving.
            overdue.finishes = pending.isEmpty && (isDraining || now - since >= limits.idleDeadline)
        case .head(let since) where now - since >= limits.headDeadline:
            overdue.responds = parsingFailed(.requestTimeout, now: now)
        case .body(let since, _, _) where now - since >= limits.bodyDeadline:
            overdue.responds = parsingFailed(.requestTimeout, now: now)
        case .skipping(let since, _) where now - since >= limits.bodyDeadline:
            overdue.finishes = pending.isEmpty
            reading = .ended
        case .head, .body, .skipping, .ended:
            break
        }
        if overdue.finishes {
            reading = .ended
        }
        overdue.abandoned = abandonOverdue(now: now, limits: limits)
        overdue.responds = overdue.responds || !overdue.abandoned.isEmpty
        return overdue
    }

    /// While reading is paused because many requests are pending, the peer is not late.
    private mutating func deferDeadlines(now: NIODeadline) {
        switch reading {
        case .head: reading = .head(since: now)
        case .body(_, let count, let isLast): reading = .body(since: now, count: count, isLast: isLast)
        case .skipping(_, let count): reading = .skipping(since: now, count: count)
        case .handshaking, .idle, .ended: break
        }
    }

    private mutating func abandonOverdue(now: NIODeadline, limits: ServerLimits) -> [UInt64] {
        var abandoned: [UInt64] = []
        for index in pending.indices {
            if case .submitted(let ticket, let since) = pending[index].progress, now - since >= limits.responseDeadline
            {
                pending[index].progress = .decided(.responseTimedOut)
                abandoned.append(ticket)
            }
        }
        return abandoned
    }
}
