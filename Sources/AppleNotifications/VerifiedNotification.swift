/// A notification that Apple signed for one of our app groups and that says something we understand.
public struct VerifiedNotification: Sendable, Equatable {
    /// `jti`, 1…256 bytes.
    public let id: NotificationID
    /// `iat`.
    public let issuedAt: WallTime
    /// `exp`, or a day after ``issuedAt`` where it is absent, as in the documentation's sample.
    public let expiresAt: WallTime
    /// The team that `aud` belongs to.
    public let team: TeamID
    /// The primary App ID of the group that `aud` belongs to.
    public let app: AppID
    /// `aud` as sent.
    public let audience: String
    /// What it says.
    public let event: AccountEvent
    /// `kid` of the key that signed it.
    public let keyID: String
    /// The compact JWS as received.
    public let token: [UInt8]

    /// A notification of these parts. What ``NotificationVerifier`` returns went through its checks; this goes through
    /// none.
    public init(
        id: NotificationID,
        issuedAt: WallTime,
        expiresAt: WallTime,
        team: TeamID,
        app: AppID,
        audience: String,
        event: AccountEvent,
        keyID: String,
        token: [UInt8]
    ) {
        self.id = id
        self.issuedAt = issuedAt
        self.expiresAt = expiresAt
        self.team = team
        self.app = app
        self.audience = audience
        self.event = event
        self.keyID = keyID
        self.token = token
    }
}
