import NIOCore

extension ConnectionExchange {
    /// What to do about a peer that has finished, or about the end of the service.
    enum EndAction: Equatable {
        /// Answers are outstanding, or one may be ready.
        case answer
        /// Nothing is outstanding: the peer is told that nothing more will come.
        case finish
        /// Nobody is left to be told.
        case close
    }

    /// What to do about a deadline that has passed.
    struct Overdue: Equatable {
        /// Nothing is worth waiting for, and nobody needs to be told.
        var closes = false
        /// Nothing is worth waiting for.
        var finishes = false
        /// An answer may be ready.
        var answers = false
        /// The intake's answers to these aren't awaited any more.
        var abandoned: [UInt64] = []
    }

    /// How much a connection is worth keeping when there are too many. Later cases are worth more, and within a case
    /// those that began later: whoever has just come must get the chance to say something.
    enum Worth: Comparable {
        /// It has been sending nothing for a while.
        case silent(since: NIODeadline)
        /// A request has been arriving, or the last one isn't long ago.
        case active(since: NIODeadline)
        /// Someone waits for an answer.
        case waiting
    }

    /// Less silence than this isn't held against a connection.
    static let grace = TimeAmount.seconds(1)

    /// The connection's worth.
    func worth(now: NIODeadline) -> Worth {
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

    /// Everything was answered and nothing more will be read.
    var isFinished: Bool {
        reading == .ended && pending.isEmpty
    }

    /// The peer has sent all that it wants to send.
    mutating func peerFinished(now: NIODeadline) -> EndAction {
        switch ending {
        case .lingering: return .close
        case .open, .peerFinished: break
        }
        ending = .peerFinished
        switch reading {
        case .body:
            _ = parsingFailed(.malformedRequest, now: now)
        case .handshaking, .idle, .head, .skipping, .ended:
            reading = .ended
        }
        return pending.isEmpty ? .close : .answer
    }

    /// The service ends: what is in flight is answered, nothing else is begun.
    mutating func drainingBegan() -> EndAction {
        isDraining = true
        switch reading {
        case .handshaking:
            return .close
        case .idle:
            guard pending.isEmpty else { return .answer }
            reading = .ended
            return .finish
        case .head, .body, .skipping, .ended:
            return .answer
        }
    }

    /// The last answer was written.
    mutating func lingeringBegan(now: NIODeadline) {
        ending = .lingering(since: now)
    }

    /// The connection is gone. The result is the tickets of the requests that the intake has.
    mutating func closed() -> [UInt64] {
        let tickets = pending.compactMap { request in
            if case .submitted(let ticket, _) = request.progress { ticket } else { nil }
        }
        reading = .ended
        pending.removeAll()
        return tickets
    }

    /// Time has passed.
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
            // The shut-down may have begun while the rest of a refused request still came in.
            overdue.finishes = pending.isEmpty && (isDraining || now - since >= limits.idleDeadline)
        case .head(let since) where now - since >= limits.headDeadline:
            overdue.answers = parsingFailed(.requestTimeout, now: now)
        case .body(let since, _, _) where now - since >= limits.bodyDeadline:
            overdue.answers = parsingFailed(.requestTimeout, now: now)
        case .skipping(let since, _):
            overdue.finishes = now - since >= limits.bodyDeadline
        case .head, .body, .ended:
            break
        }
        if overdue.finishes {
            reading = .ended
        }
        overdue.abandoned = abandonOverdue(now: now, limits: limits)
        overdue.answers = overdue.answers || !overdue.abandoned.isEmpty
        return overdue
    }

    /// While so many wait that nothing is read, the peer isn't to blame for what it hasn't sent.
    private mutating func deferDeadlines(now: NIODeadline) {
        switch reading {
        case .head: reading = .head(since: now)
        case .body(_, let count, let isLast): reading = .body(since: now, count: count, isLast: isLast)
        case .handshaking, .idle, .skipping, .ended: break
        }
    }

    private mutating func abandonOverdue(now: NIODeadline, limits: ServerLimits) -> [UInt64] {
        var abandoned: [UInt64] = []
        for index in pending.indices {
            if case .submitted(let ticket, let since) = pending[index].progress,
                now - since >= limits.answerDeadline
            {
                pending[index].progress = .decided(.answerTimedOut)
                abandoned.append(ticket)
            }
        }
        return abandoned
    }
}
