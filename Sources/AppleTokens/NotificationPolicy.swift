/// What a notification must be to be ours and in time.
package struct NotificationPolicy: Sendable, Equatable {
    /// Apple's issuer (`iss`), compared byte by byte.
    package let issuer: String
    /// Whose notifications are expected.
    package let audiences: AudienceMap
    /// How far Apple's clock and ours may differ, in both directions; never negative.
    package let leeway: Duration

    /// What Apple writes into `iss`. Hard-coded, since Apple's discovery document named another one for a day.
    package static let appleIssuer = "https://appleid.apple.com"

    /// A policy; a negative leeway counts as none.
    package init(issuer: String = appleIssuer, audiences: AudienceMap, leeway: Duration = .seconds(300)) {
        self.issuer = issuer
        self.audiences = audiences
        self.leeway = max(leeway, .zero)
    }
}
