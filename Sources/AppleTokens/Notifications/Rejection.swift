/// The reason why a request is refused and nothing of it is stored.
package enum Rejection: String, Error, Sendable, Hashable, CaseIterable {
    case malformedBody = "malformed-body"
    case malformedToken = "malformed-token"
    case unsupportedAlgorithm = "unsupported-algorithm"
    /// An identity token: Apple signs one for every user.
    case notANotification = "not-a-notification"
    /// An App Store Server Notification, which belongs to another endpoint.
    case appStoreNotification = "app-store-notification"
    case badSignature = "bad-signature"
    case unknownKey = "unknown-key"
    /// A key of the set signed it for another issuer.
    case wrongIssuer = "wrong-issuer"
    case bodyTooLarge = "body-too-large"

    package var status: Int {
        switch self {
        case .malformedBody, .malformedToken, .unsupportedAlgorithm, .notANotification, .appStoreNotification: 400
        case .badSignature, .unknownKey, .wrongIssuer: 401
        case .bodyTooLarge: 413
        }
    }

    /// The `title` of the problem (RFC 9457 §3.1.3), the same for every occurrence.
    package var title: String {
        switch self {
        case .malformedBody: "The body has no notification"
        case .malformedToken: "The token is not a compact JWS"
        case .unsupportedAlgorithm: "The token is not signed with RS256"
        case .notANotification: "The token is not a notification"
        case .appStoreNotification: "This is an App Store notification"
        case .badSignature: "The signature is not valid"
        case .unknownKey: "The signing key is not known"
        case .wrongIssuer: "The issuer is not Apple"
        case .bodyTooLarge: "The body is too large"
        }
    }

    /// What an honest sender can do about it. The same for every occurrence, so that a forger learns nothing from it.
    package var detail: String {
        switch self {
        case .malformedBody:
            "Send a JSON object with the compact JWS as its string member “payload”."
        case .malformedToken:
            "Send three parts of base64url without padding, separated by dots, the first a JSON object with “alg” and "
                + "“kid”."
        case .unsupportedAlgorithm:
            "Sign in with Apple signs its notifications with RS256; nothing else is accepted here."
        case .notANotification:
            "The token has no “events” claim. An identity token belongs to the sign-in endpoint of the application."
        case .appStoreNotification:
            "Register the URL of this endpoint for Sign in with Apple only, and another one for App Store Server "
                + "Notifications."
        case .badSignature:
            "The token was changed on its way or signed with another key."
        case .unknownKey:
            "Apple's key set has no key of that “kid”."
        case .wrongIssuer:
            "Only notifications issued by Apple for Sign in with Apple are accepted here."
        case .bodyTooLarge:
            "A notification is about one kilobyte; bodies over \(NotificationBody.maximumBytes / 1_024) KiB are refused."
        }
    }
}
