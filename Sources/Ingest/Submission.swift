import AccountStore
import AppleTokens

/// Something that waits to be made durable, and who waits for it.
struct Submission: Sendable {
    /// What is to be stored. Indirect, so that a queue of submissions moves three words each.
    indirect enum Work: Sendable {
        case notification(ReceivedNotification)
        /// `whenKept` is the answer once it is durable: a letter without a verified signature doesn't earn a 200.
        case deadLetter(ReceivedDeadLetter, whenKept: Answer)
    }

    let work: Work
    let lane: ReplyLane
    let ticket: UInt64
    /// Its number among all submissions of the queue, which assigns it.
    var number: UInt64 = 0

    /// What a request costs in memory in addition to its bytes: its claims and the buffers of its connection.
    static let overhead = 6 << 10

    /// About how many bytes of memory the request takes while it waits.
    var bytes: Int {
        switch work {
        case .notification(let received): Self.overhead + received.notification.token.count
        case .deadLetter(let received, _): Self.overhead + received.letter.token.count
        }
    }
}

extension [(Submission, Answer)] {
    /// Gives every lane its answers, each lane once.
    func deliver() {
        guard let first = first?.0.lane else { return }
        if allSatisfy({ $0.0.lane === first }) {
            first.deliver(map { Reply(ticket: $0.0.ticket, answer: $0.1) })
            return
        }
        var replies: [ObjectIdentifier: (lane: ReplyLane, replies: [Reply])] = [:]
        for (submission, answer) in self {
            replies[ObjectIdentifier(submission.lane), default: (submission.lane, [])].replies
                .append(Reply(ticket: submission.ticket, answer: answer))
        }
        for (lane, replies) in replies.values {
            lane.deliver(replies)
        }
    }
}
