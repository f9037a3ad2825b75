import JOSE

/// Why a request of an application is refused: a problem document (RFC 9457), with what the application does about it.
package struct Problem: Error, Sendable, Equatable {
    package enum Action: String, Sendable, CaseIterable {
        case fixRequest = "fix-request"
        case fixConfiguration = "fix-configuration"
        /// An attack or a bug: the person is not signed in.
        case refuse
        /// Start a new authorization on the device.
        case askAgain = "ask-again"
        /// Send the same request again after ``Problem/retryAfter``.
        case retry
    }

    package enum Reason: String, Sendable, CaseIterable {
        case malformedRequest = "malformed-request"
        case unknownClient = "unknown-client"
        case unauthenticated
        case clientNotAllowed = "client-not-allowed"
        case notFound = "not-found"
        case methodNotAllowed = "method-not-allowed"
        case requestTimeout = "request-timeout"
        case bodyTooLarge = "body-too-large"
        case unsupportedMediaType = "unsupported-media-type"

        case malformedToken = "malformed-token"
        case unsupportedAlgorithm = "unsupported-algorithm"
        case notAnIdentityToken = "not-an-identity-token"
        case badSignature = "bad-signature"
        case unknownKey = "unknown-key"
        case wrongIssuer = "wrong-issuer"
        case wrongAudience = "wrong-audience"
        case codeMismatch = "code-mismatch"
        case nonceMismatch = "nonce-mismatch"
        case nonceMissing = "nonce-missing"
        case nonceUsed = "nonce-used"
        case tokenUsed = "token-used"

        case expired
        case tokenTooOld = "token-too-old"
        case notYetValid = "not-yet-valid"
        case nonceExpired = "nonce-expired"
        case codeRejected = "code-rejected"

        case consentRevoked = "consent-revoked"
        case accountDeleted = "account-deleted"
        case sessionTaken = "session-taken"
        case inProgress = "in-progress"

        case appleRefusedClient = "apple-refused-client"
        case appleUnexpected = "apple-unexpected"

        case keysUnavailable = "keys-unavailable"
        case appleUnavailable = "apple-unavailable"
        case databaseUnavailable = "database-unavailable"
        case overloaded
        case draining
    }

    package let reason: Reason
    /// One sentence for the developer of the application. It may quote `aud`, but no other claim and no secret.
    package let detail: String
    /// `Retry-After` in seconds; never nil for 503.
    package let retryAfter: Int?

    package init(_ reason: Reason, _ detail: String, retryAfter: Int? = nil) {
        self.reason = reason
        self.detail = detail
        self.retryAfter = retryAfter ?? (reason.status == 503 ? 1 : nil)
    }

    /// The body of the response, `application/problem+json`.
    package var json: String {
        "{\"type\":\"urn:siwad:problem:\(reason.rawValue)\",\"title\":\(JSONValue.quoted(reason.title)),"
            + "\"status\":\(reason.status),\"detail\":\(JSONValue.quoted(detail)),"
            + "\"reason\":\"\(reason.rawValue)\",\"action\":\"\(reason.action.rawValue)\"}"
    }
}

extension Problem.Reason {
    package var status: Int {
        switch self {
        case .malformedRequest, .unknownClient: 400
        case .unauthenticated: 401
        case .clientNotAllowed: 403
        case .notFound: 404
        case .methodNotAllowed: 405
        case .requestTimeout: 408
        case .bodyTooLarge: 413
        case .unsupportedMediaType: 415
        case .malformedToken, .unsupportedAlgorithm, .notAnIdentityToken, .badSignature, .unknownKey, .wrongIssuer,
            .wrongAudience, .codeMismatch, .nonceMismatch, .nonceMissing, .nonceUsed, .tokenUsed:
            422
        case .expired, .tokenTooOld, .notYetValid, .nonceExpired, .codeRejected:
            422
        case .consentRevoked, .accountDeleted, .sessionTaken, .inProgress: 409
        case .appleRefusedClient, .appleUnexpected: 502
        case .keysUnavailable, .appleUnavailable, .databaseUnavailable, .overloaded, .draining: 503
        }
    }

    package var action: Problem.Action {
        switch self {
        case .malformedRequest, .unknownClient, .notFound, .methodNotAllowed, .bodyTooLarge, .unsupportedMediaType,
            .sessionTaken:
            .fixRequest
        case .unauthenticated, .clientNotAllowed, .appleRefusedClient, .appleUnexpected: .fixConfiguration
        case .malformedToken, .unsupportedAlgorithm, .notAnIdentityToken, .badSignature, .unknownKey, .wrongIssuer,
            .wrongAudience, .codeMismatch, .nonceMismatch, .nonceMissing, .nonceUsed, .tokenUsed, .accountDeleted:
            .refuse
        case .expired, .tokenTooOld, .notYetValid, .nonceExpired, .codeRejected, .consentRevoked: .askAgain
        case .requestTimeout, .inProgress, .keysUnavailable, .appleUnavailable, .databaseUnavailable, .overloaded,
            .draining:
            .retry
        }
    }

    /// The same for every occurrence (RFC 9457 §3.1.3).
    package var title: String {
        switch self {
        case .malformedRequest: "The request is malformed"
        case .unknownClient: "The client id is not configured"
        case .unauthenticated: "The caller is not known"
        case .clientNotAllowed: "The caller may not act for this client id"
        case .notFound: "Not found"
        case .methodNotAllowed: "The method is not allowed"
        case .requestTimeout: "The request took too long"
        case .bodyTooLarge: "The body is too large"
        case .unsupportedMediaType: "The body is not JSON"
        case .malformedToken: "The identity token is malformed"
        case .unsupportedAlgorithm: "The identity token is not signed with RS256"
        case .notAnIdentityToken: "The token is not an identity token"
        case .badSignature: "The signature of the identity token is not valid"
        case .unknownKey: "The signing key is not known"
        case .wrongIssuer: "The issuer is not Apple"
        case .wrongAudience: "The identity token is for another client"
        case .codeMismatch: "The code and the identity token do not belong together"
        case .nonceMismatch: "The identity token belongs to another nonce"
        case .nonceMissing: "The nonce is missing"
        case .nonceUsed: "The nonce was used before"
        case .tokenUsed: "The identity token or the code was used before"
        case .expired: "The identity token has expired"
        case .tokenTooOld: "The identity token is too old"
        case .notYetValid: "The identity token is not valid yet"
        case .nonceExpired: "The nonce has expired"
        case .codeRejected: "Apple refuses the authorization code"
        case .consentRevoked: "The person has revoked the consent since"
        case .accountDeleted: "The Apple Account was deleted"
        case .sessionTaken: "The session id is in use"
        case .inProgress: "The same sign-in is in progress"
        case .appleRefusedClient: "Apple refuses the client"
        case .appleUnexpected: "Apple's answer does not fit the request"
        case .keysUnavailable: "Apple's keys are not available"
        case .appleUnavailable: "Apple is not available"
        case .databaseUnavailable: "The database is not available"
        case .overloaded: "Too many requests at the same time"
        case .draining: "siwad is shutting down"
        }
    }
}
