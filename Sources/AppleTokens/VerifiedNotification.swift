package import Basics

/// A notification that Apple signed for one of our app groups and that says something we understand.
package struct VerifiedNotification: Sendable, Equatable {
    /// `jti`, 1…256 bytes.
    package let id: NotificationID
    /// `iat`.
    package let issuedAt: WallTime
    /// `exp`, or a day after ``issuedAt`` where it is absent, as in the documentation's sample.
    package let expiresAt: WallTime
    /// The team that `aud` belongs to.
    package let team: TeamID
    /// The primary App ID of the group that `aud` belongs to.
    package let app: AppID
    /// `aud` as sent.
    package let audience: String
    /// What it says.
    package let event: AccountEvent
    /// `kid` of the key that signed it.
    package let keyID: String
    /// The compact JWS as received.
    package let token: [UInt8]

    /// A notification of these parts. What ``NotificationVerifier`` returns went through its checks; this goes through
    /// none.
    package init(
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
