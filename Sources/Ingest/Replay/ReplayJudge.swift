package import AccountStore
package import AppleTokens
package import Basics
package import JOSE

/// Checks dead letters again as the endpoint would.
struct ReplayJudge {
    enum Judgement {
        case verified(ReceivedNotification)
        /// Recording its notification would create a partition that the retention drops.
        case tooOld
        case dead(DeadLetter)
        /// It is not a notification of Apple's, and no other key will change that.
        case refused(Rejection)
    }

    let verifier: NotificationVerifier
    let keys: ReplayKeys
    let acceptsExpired: Bool
    /// Older notifications are not recorded.
    let horizon: WallTime
    let now: WallTime

    /// Judges a letter. A signature that was verified at receipt is not verified again.
    func judge(_ letter: ClaimedDeadLetter) -> Judgement {
        guard !letter.body.isEmpty else { return .dead(letter.staying("Its body was erased.")) }
        let token: [UInt8]
        do {
            token = try NotificationBody.token(in: letter.body)
        } catch {
            return .dead(letter.staying("Its body holds no token."))
        }
        let withdrawn = Judgement.dead(letter.staying("Its key had left Apple's set before it was received."))
        let authority = letter.verifiedKeyID.map { Authority.record(keyID: $0) } ?? .signature(keys.set)
        let receivedAt = acceptsExpired ? nil : letter.receivedAt
        switch verifier.verify(token: token, authority: authority, receivedAt: receivedAt, now: now) {
        case .verified(let notification):
            guard isCovered(letter, by: notification.keyID) else { return withdrawn }
            guard notification.issuedAt >= horizon else { return .tooOld }
            return .verified(ReceivedNotification(notification, receivedAt: letter.receivedAt))
        case .deadLetter(let found):
            return isCovered(letter, by: found.verifiedKeyID) ? .dead(found) : withdrawn
        case .refused(let rejection):
            return .refused(rejection)
        case .needsKey:
            let detail =
                keys.problem == nil
                ? "Its key is not in Apple's set and never was seen there: Apple may not have signed it."
                : "Its key was never seen in Apple's set, and the set could not be fetched."
            return .dead(letter.staying(detail))
        }
    }

    private func isCovered(_ letter: ClaimedDeadLetter, by kid: String?) -> Bool {
        guard letter.verifiedKeyID == nil else { return true }
        return kid.map { keys.covers($0, receivedAt: letter.receivedAt, leeway: verifier.policy.leeway) } ?? false
    }
}

extension ClaimedDeadLetter {
    /// The finding of an attempt after which it keeps its reason.
    func staying(_ detail: String) -> DeadLetter { DeadLetter(reason: reason, detail: detail, token: []) }
}

/// The keys that verify unverified letters: Apple's current ones, and stored ones that were seen before.
package struct ReplayKeys: Sendable {
    package let set: KeySet
    /// Why Apple's current keys are missing; nil: they are not, or were not needed.
    package let problem: String?
    /// Stored keys that are not current, with the time when they last were.
    private let lastSeenAt: [String: WallTime]

    /// For letters that were verified at receipt.
    package static let none = ReplayKeys(today: [], kept: [], problem: nil)

    /// - Parameter kept: stored keys; entries that can't be read as a key are left out.
    package init(today: [JSONWebKey], kept: [SigningKeys.Seen], problem: String?) {
        var lastSeenAt: [String: WallTime] = [:]
        var keys = today
        for seen in kept where !today.contains(where: { $0.keyID == seen.key.keyID }) {
            // Every stored key was parsed before it was written.
            guard let key = try? JSONWebKey(JSONValue(parsing: Array(seen.key.jwk.utf8))) else { continue }
            keys.append(key)
            lastSeenAt[key.keyID] = seen.lastSeenAt
        }
        self.set = KeySet(keys, fetchedAt: nil)
        self.problem = problem
        self.lastSeenAt = lastSeenAt
    }

    /// Whether a key may verify a token that was received at a time: a key that Apple had withdrawn before may not.
    package func covers(_ kid: String, receivedAt: WallTime, leeway: Duration) -> Bool {
        guard set.contains(kid: kid) else { return false }
        return lastSeenAt[kid].map { $0 + leeway >= receivedAt } ?? true
    }
}
