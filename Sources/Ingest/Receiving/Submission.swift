import AccountStore
import AppleTokens
import JOSE
import Spool

/// A notification or dead letter that waits to become durable, and the request that waits for it.
struct Submission: Sendable {
    /// Indirect, so that a queue of submissions moves few words each.
    indirect enum Work: Sendable {
        case notification(ReceivedNotification)
        /// `whenKept` is the response once it is durable: a letter without a verified signature is not acknowledged.
        case deadLetter(ReceivedDeadLetter, whenKept: IngestResponse)
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

extension Submission.Work {
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

extension ReceivedDeadLetter {
    var isVerified: Bool { letter.verifiedKeyID != nil }

    /// The part of the spool that it may use.
    var share: Spool.Share { isVerified ? .letters : .unverified }
}

extension [(Submission, IngestResponse)] {
    /// Delivers the responses, with one call for each sink.
    func deliver() {
        guard let first = first?.0.sink else { return }
        if allSatisfy({ $0.0.sink === first }) {
            first.deliver(map { Reply(ticket: $0.0.ticket, answer: $0.1) })
            return
        }
        for (_, responses) in Dictionary(grouping: self, by: { ObjectIdentifier($0.0.sink) }) {
            responses.first?.0.sink.deliver(responses.map { Reply(ticket: $0.0.ticket, answer: $0.1) })
        }
    }
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
        self.init(work: Self.work(record, verifier), sink: .none, ticket: 0)
    }

    private static func work(_ record: SpoolRecord, _ verifier: NotificationVerifier) -> Work {
        let receivedAt = WallTime(microseconds: record.receivedAt)
        let token = record.token
        guard let keyID = record.keyID else { return letter(.keysUnavailable(token: token), record) }
        switch verifier.judge(recorded: token, verifiedBy: keyID, receivedAt: receivedAt) {
        case .verified(let notification):
            return .notification(ReceivedNotification(notification, receivedAt: receivedAt))
        case .deadLetter(let dead):
            return letter(dead, record)
        case .refused(let rejection):
            let dead = DeadLetter(
                reason: .malformedClaims,
                detail: "It was acknowledged into the spool, and is refused since then: \(rejection.rawValue).",
                verifiedKeyID: keyID,
                token: token
            )
            return letter(dead, record)
        case .needsKey:
            return letter(.keysUnavailable(token: token), record)
        }
    }

    private static func letter(_ letter: DeadLetter, _ record: SpoolRecord) -> Work {
        let received = ReceivedDeadLetter(
            letter,
            tokenDigest: SHA256.digest(letter.token.span),
            receivedAt: WallTime(microseconds: record.receivedAt)
        )
        return .deadLetter(received, whenKept: .acknowledged)
    }
}
