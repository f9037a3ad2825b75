import AccountStore
import AppleTokens
import JOSE
import Spool

extension SpoolRecord {
    /// A submission as the spool keeps it: what it takes to judge it again.
    init(_ submission: Submission) {
        switch submission.work {
        case .notification(let received):
            self.init(
                receivedAt: received.receivedAt.microseconds,
                keyID: received.notification.keyID,
                body: received.notification.token
            )
        case .deadLetter(let received, _):
            self.init(
                receivedAt: received.receivedAt.microseconds,
                keyID: received.letter.verifiedKeyID,
                body: received.letter.token
            )
        }
    }

    /// The token in the body. A body without a token is never spooled; its bytes are taken as the token.
    var token: [UInt8] { (try? NotificationBody.token(in: body.span)) ?? body }
}

extension Submission {
    /// What a record of the spool asks the database to store. Nobody waits for an answer any more.
    ///
    /// Whatever it was when it was spooled, it is judged under the policy in force: a dead letter whose app is configured
    /// now is a notification.
    init(_ record: SpoolRecord, judgedBy verifier: NotificationVerifier) {
        self.init(work: Self.work(record, verifier), lane: .nobody, ticket: 0)
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

extension ReplyLane {
    /// Leads nowhere.
    static let nobody = ReplyLane { _ in }
}
