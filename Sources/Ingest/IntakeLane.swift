import AccountStore
import AppleTokens
import JOSE

/// The way in for one event loop: verifies on it, without a task or a hop, and hands over what has to be stored.
///
/// Not thread-safe and not `Sendable`: it belongs to its event loop.
package final class IntakeLane {
    private let intake: Intake
    private var verifier: NotificationVerifier
    private var policyVersion: Int
    private let replies: ReplyLane

    /// A way in.
    ///
    /// - Parameter deliver: takes the answers that were not given at once, all those of one transaction in one call, on
    ///   another thread.
    package init(intake: Intake, deliver: @escaping @Sendable ([Reply]) -> Void) {
        self.intake = intake
        // Before the policy: one that is replaced in between is made once more.
        self.policyVersion = intake.policyVersion
        self.verifier = NotificationVerifier(policy: intake.policy)
        self.replies = ReplyLane(deliver: deliver)
    }

    /// Takes one request in.
    ///
    /// - Parameters:
    ///   - body: the request's body, of which the token is copied.
    ///   - ticket: comes back with the answer.
    /// - Returns: the answer, or nil when it comes through `deliver`.
    package func receive(_ body: Span<UInt8>, ticket: UInt64) -> Answer? {
        let token: [UInt8]
        do {
            token = try NotificationBody.token(in: body)
        } catch {
            return .refused(error)
        }
        let now = intake.now()
        followPolicy()
        let verdict = verifier.verify(token: token, keys: intake.keys.keys, now: now)
        switch verdict {
        case .verified(let notification):
            let received = ReceivedNotification(notification, receivedAt: now)
            return intake.submit(Submission(work: .notification(received), lane: replies, ticket: ticket))
        case .refused(let rejection):
            return .refused(rejection)
        case .deadLetter(let letter):
            let request = Intake.Request(receivedAt: now, lane: replies, ticket: ticket)
            return intake.keep(letter, of: request, whenKept: .acknowledged)
        case .needsKey(let kid, let token):
            let request = Intake.Request(receivedAt: now, lane: replies, ticket: ticket)
            intake.resolve(kid, token: token, of: request)
            return nil
        }
    }

    private func followPolicy() {
        let version = intake.policyVersion
        guard version != policyVersion else { return }
        policyVersion = version
        verifier = NotificationVerifier(policy: intake.policy)
    }
}
