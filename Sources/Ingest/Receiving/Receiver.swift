import AccountStore
package import AppleTokens
import Basics
import JOSE

/// The response to a request, independent of HTTP.
package enum IngestResponse: Sendable, Equatable {
    /// 200: it is durable, and Apple need not send it again.
    case acknowledged
    /// It is not a notification of Apple's; nothing of it is kept.
    case refused(Rejection)
    /// 503: send it again after so many seconds.
    case unavailable(Unavailability, retryAfterSeconds: Int)
}

/// The reason for a 503.
package enum Unavailability: String, Sendable, Hashable, CaseIterable {
    case keysUnavailable = "keys-unavailable"
    case databaseUnavailable = "database-unavailable"
    case queueFull = "queue-full"
    case deadLetterLimit = "dead-letter-limit"
    case shuttingDown = "shutting-down"

    /// A short name of the condition, the same for every occurrence (RFC 9457 §3.1.3).
    package var title: String {
        switch self {
        case .keysUnavailable: "The signing key can't be looked up at present"
        case .databaseUnavailable: "Notifications can't be stored at present"
        case .queueFull: "Too many notifications are waiting"
        case .deadLetterLimit: "Too many notifications wait for an operator"
        case .shuttingDown: "The service is restarting"
        }
    }

    package var detail: String {
        self == .shuttingDown
            ? "Send it again after the time that Retry-After names."
            : "Nothing is lost by sending it again after the time that Retry-After names."
    }
}

/// The response to a request that had to wait for one.
package struct Reply: Sendable, Equatable {
    package let ticket: UInt64
    package let answer: IngestResponse

    package init(ticket: UInt64, answer: IngestResponse) {
        self.ticket = ticket
        self.answer = answer
    }
}

/// Delivers the responses of one event loop.
final class ResponseSink: Sendable {
    /// For what is read from the spool: it was answered when it was written there.
    static let none = ResponseSink { _ in }

    private let deliver: @Sendable ([Reply]) -> Void

    init(deliver: @escaping @Sendable ([Reply]) -> Void) {
        self.deliver = deliver
    }

    /// Delivers the responses to requests of any event loops, with one call for each loop.
    static func deliver(_ responses: [(Submission, IngestResponse)]) {
        for responses in Dictionary(grouping: responses, by: { ObjectIdentifier($0.0.sink) }).values {
            responses.first?.0.sink.deliver(responses.map { Reply(ticket: $0.0.ticket, answer: $0.1) })
        }
    }

    func deliver(_ reply: Reply) { deliver([reply]) }
}

/// Receives the requests of one event loop: verifies them there, without a task or another thread, and submits them to the
/// writer.
///
/// Not thread-safe and not `Sendable`: it belongs to its event loop.
package final class Receiver {
    private let service: IngestService
    private let sink: ResponseSink
    private var verifier: NotificationVerifier
    private var policyVersion: Int

    /// - Parameter deliver: receives the responses that ``receive(_:ticket:)`` did not return: one call for each transaction,
    ///   on another thread.
    package init(service: IngestService, deliver: @escaping @Sendable ([Reply]) -> Void) {
        self.service = service
        sink = ResponseSink(deliver: deliver)
        // Before the policy: one that is replaced in between is read once more.
        policyVersion = service.policyVersion
        verifier = NotificationVerifier(policy: service.policy)
    }

    /// - Parameter ticket: identifies the request when its response is delivered.
    /// - Returns: the response, or nil if it is delivered later.
    package func receive(_ body: Span<UInt8>, ticket: UInt64) -> IngestResponse? {
        let token: [UInt8]
        do {
            token = try NotificationBody.token(in: body)
        } catch {
            return .refused(error)
        }
        let version = service.policyVersion
        if version != policyVersion {
            policyVersion = version
            verifier = NotificationVerifier(policy: service.policy)
        }
        let request = Request(service: service, sink: sink, ticket: ticket, receivedAt: service.now())
        let decision = verifier.verify(token: token, keys: service.keys.keys, now: request.receivedAt)
        return request.follow(decision) { kid, token in
            request.waitForKey(kid, token: token)
            return nil
        }
    }
}

/// A request whose token was read.
private struct Request: Sendable {
    let service: IngestService
    let sink: ResponseSink
    let ticket: UInt64
    let receivedAt: WallTime

    /// Submits what the decision makes of the token. Returns the response if nothing is submitted.
    func follow(
        _ decision: Decision,
        needsKey: (_ kid: String, _ token: [UInt8]) -> IngestResponse?
    ) -> IngestResponse? {
        switch decision {
        case .verified(let notification):
            submit(.notification(ReceivedNotification(notification, receivedAt: receivedAt)))
        case .refused(let rejection): .refused(rejection)
        case .deadLetter(let letter): keep(letter, response: .acknowledged)
        case .needsKey(let kid, let token): needsKey(kid, token)
        }
    }

    /// Submits a dead letter, unless its token is durable already.
    ///
    /// - Parameter response: the response once it is durable.
    private func keep(_ letter: DeadLetter, response: IngestResponse) -> IngestResponse? {
        let received = ReceivedDeadLetter(letter, receivedAt: receivedAt)
        if service.durable.contains(received.tokenDigest, as: received.share) { return response }
        guard service.budget.reserve(letter.reason) else {
            // Without a verified signature it is answered as if it were kept.
            return received.isVerified ? .unavailable(.deadLetterLimit, retryAfterSeconds: 300) : response
        }
        let refusal = submit(.deadLetter(received, whenKept: response))
        if refusal != nil { service.budget.release(letter.reason) }
        return refusal
    }

    /// Verifies the token again when its key has come. The response is delivered.
    func waitForKey(_ kid: String, token: [UInt8]) {
        service.keys.want(kid, holding: Submission.overhead + token.count) { resolution in
            let response =
                switch resolution {
                case .unknownKey: IngestResponse?.some(.refused(.unknownKey))
                case .keysUnavailable(let seconds): keepForKey(token, retryAfterSeconds: seconds)
                case .keyFound:
                    // At its time of receipt: it must not expire because it waited for a key.
                    follow(service.verify(token, receivedAt: receivedAt)) { _, token in
                        // The key was removed by a rotation after it came.
                        keepForKey(token, retryAfterSeconds: 1)
                    }
                }
            if let response { sink.deliver(Reply(ticket: ticket, answer: response)) }
        }
    }

    private func keepForKey(_ token: [UInt8], retryAfterSeconds seconds: Int) -> IngestResponse? {
        keep(.keysUnavailable(token: token), response: .unavailable(.keysUnavailable, retryAfterSeconds: seconds))
    }

    private func submit(_ work: Submission.Work) -> IngestResponse? {
        switch service.queue.submit(Submission(work: work, sink: sink, ticket: ticket)) {
        case .accepted: nil
        case .full: .unavailable(.queueFull, retryAfterSeconds: 1)
        case .paused: .unavailable(.databaseUnavailable, retryAfterSeconds: 5)
        case .closed: .unavailable(.shuttingDown, retryAfterSeconds: 5)
        }
    }
}
