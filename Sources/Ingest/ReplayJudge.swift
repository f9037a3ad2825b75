import AccountStore
import AppleTokens
import JOSE

/// Takes kept letters through the checks of the endpoint again.
struct ReplayJudge {
    /// What came of it.
    enum Judgement {
        case verified(ReceivedNotification)
        case dead(DeadLetter)
        /// It is none of Apple's notifications, whatever keys there will be.
        case refused(Rejection)
    }

    private let verifier: NotificationVerifier
    private let keys: ReplayKeys
    private let acceptsExpired: Bool
    /// Notifications that were issued before are not recorded.
    private let horizon: WallTime
    private let now: WallTime

    init(policy: NotificationPolicy, keys: ReplayKeys, acceptsExpired: Bool, retention: Duration, now: WallTime) {
        self.verifier = NotificationVerifier(policy: policy)
        self.keys = keys
        self.acceptsExpired = acceptsExpired
        self.horizon = now - retention
        self.now = now
    }

    /// Judges a letter: what was verified at receipt on the record of that, the others by their signature.
    func judge(_ letter: ClaimedDeadLetter) -> Judgement {
        guard !letter.body.isEmpty else { return Self.stays(letter, "Its body was erased.") }
        let token: [UInt8]
        do {
            token = try NotificationBody.token(in: letter.body)
        } catch {
            return Self.stays(letter, "Its body holds no token.")
        }
        let authority = letter.verifiedKeyID.map { Authority.record(keyID: $0) } ?? .signature(keys.set)
        let receivedAt = acceptsExpired ? nil : letter.receivedAt
        switch verifier.verify(token: token, authority: authority, receivedAt: receivedAt, now: now) {
        case .verified(let notification):
            guard isCovered(letter, by: notification.keyID) else { return Self.stays(letter, Self.withdrawn) }
            return .verified(ReceivedNotification(notification, receivedAt: letter.receivedAt))
        case .deadLetter(let found):
            guard isCovered(letter, by: found.verifiedKeyID) else { return Self.stays(letter, Self.withdrawn) }
            return .dead(found)
        case .refused(let rejection):
            return .refused(rejection)
        case .needsKey:
            let detail =
                keys.problem == nil
                ? "Its key is not in Apple's set and never was seen there: Apple may not have signed it."
                : "Its key is not among those that were seen, and Apple's set could not be fetched."
            return Self.stays(letter, detail)
        }
    }

    /// Whether recording a notification would create a partition that the retention drops.
    func isTooOld(_ received: ReceivedNotification) -> Bool { received.notification.issuedAt < horizon }

    /// What is found of a letter that is none of Apple's notifications.
    static func refused(_ letter: ClaimedDeadLetter, _ rejection: Rejection) -> DeadLetter {
        same(letter, "Refused as \(rejection.rawValue): \(rejection.title).")
    }

    /// What is found of a letter whose notification is too old.
    static func tooOld(_ letter: ClaimedDeadLetter) -> DeadLetter {
        same(letter, "It is older than SIWAD_RETENTION: to apply it, replay it with a longer SIWAD_RETENTION.")
    }

    private static let withdrawn = "Its key had left Apple's set before it was received."

    private func isCovered(_ letter: ClaimedDeadLetter, by kid: String?) -> Bool {
        guard letter.verifiedKeyID == nil else { return true }
        return kid.map { keys.covers($0, receivedAt: letter.receivedAt, leeway: verifier.policy.leeway) } ?? false
    }

    /// The letter is where it was, for the reason it had.
    private static func stays(_ letter: ClaimedDeadLetter, _ detail: String) -> Judgement {
        .dead(same(letter, detail))
    }

    private static func same(_ letter: ClaimedDeadLetter, _ detail: String) -> DeadLetter {
        DeadLetter(reason: letter.reason, detail: detail, token: [])
    }
}
