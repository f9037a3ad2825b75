import Basics
import JOSE

/// What an answer of Apple's token endpoint means. The whole table of known answers is in ``init(status:retryAfter:date:body:)``.
package enum TokenAnswer: Sendable, Equatable {
    case issued(IssuedTokens)
    /// `invalid_grant`: the code or the refresh token is not valid.
    case grantRefused(TokenRefusal)
    /// `invalid_request`: Apple has answered this to refresh tokens after a revocation, and answers it to faulty requests.
    case requestRefused(TokenRefusal)
    /// `invalid_client` and every other error: the client or its secret is the cause, or Apple throttles.
    case clientRefused(TokenRefusal)
    /// Nothing is known about the grant; another attempt may succeed.
    case unavailable(Unavailability)
}

/// An error of the token endpoint.
package struct TokenRefusal: Sendable, Equatable {
    /// The member `error`.
    package struct Code: RawRepresentable, Sendable, Hashable {
        package let rawValue: String

        package init(rawValue: String) { self.rawValue = rawValue }

        package static let invalidGrant = Code(rawValue: "invalid_grant")
        package static let invalidRequest = Code(rawValue: "invalid_request")
        package static let invalidClient = Code(rawValue: "invalid_client")
        package static let unauthorizedClient = Code(rawValue: "unauthorized_client")
        package static let unsupportedGrantType = Code(rawValue: "unsupported_grant_type")
        package static let invalidScope = Code(rawValue: "invalid_scope")
    }

    /// What `error_description` says. The text itself can quote a request, so it is not kept.
    package enum Detail: Sendable, Hashable, CaseIterable {
        case alreadyUsed
        case expiredOrRevoked
        case otherClient
        case otherRedirectURI
        /// Another text, or none.
        case unspecified

        init(_ description: String?) {
            switch description {
            case "The code has already been used.": self = .alreadyUsed
            case "The code has expired or has been revoked.", "The token has expired or has been revoked.":
                self = .expiredOrRevoked
            case .some(let text) where text.hasPrefix("client_id mismatch"): self = .otherClient
            case .some(let text) where text.hasPrefix("redirect_uri mismatch"): self = .otherRedirectURI
            case .some, nil: self = .unspecified
            }
        }
    }

    package let code: Code
    package let detail: Detail

    package init(code: Code, detail: Detail) {
        self.code = code
        self.detail = detail
    }
}

/// Why an answer says nothing about the grant.
package struct Unavailability: Error, Sendable, Equatable {
    package enum Cause: String, Sendable, Hashable {
        case unreachable
        case timedOut = "timed-out"
        /// The connection broke, also at the second attempt.
        case broken
        case throttled
        /// 5xx.
        case serverError = "server-error"
        /// No answer of a token endpoint, such as a redirect, a page, or more than 64 KiB.
        case notUnderstood = "not-understood"
    }

    package let cause: Cause
    /// `Retry-After` in seconds.
    package let retryAfter: Int?

    package init(_ cause: Cause, retryAfter: Int? = nil) {
        self.cause = cause
        self.retryAfter = retryAfter
    }
}

/// The tokens of a 200. The access token is dropped: only its hash is kept, to compare it with `at_hash`.
package struct IssuedTokens: Sendable, Equatable, CustomStringConvertible, CustomReflectable {
    /// Only the answer to a code has one.
    package let refreshToken: String?
    /// Not verified.
    package let identityToken: String?
    package let accessTokenHash: String

    package var description: String { refreshToken == nil ? "tokens" : "tokens with a refresh token" }
    package var customMirror: Mirror { Mirror(self, children: [:]) }

    /// True if the claims of the verified ``identityToken`` fit the rest of the answer and the token that the device presented.
    /// If not, the answer belongs to another sign-in and nothing of it may be stored.
    ///
    /// - Parameter presentedSubject: `sub` of the presented token; nil if only a code was presented.
    package func matches(subject: String, accessTokenHash hash: String?, presentedSubject: String?) -> Bool {
        hash == accessTokenHash && (presentedSubject.map(subject.hasSameBytes) ?? true)
    }
}

// MARK: - The table

extension TokenAnswer {
    /// Interprets a complete answer. Apple sends errors with 400; the member `error` decides, whatever the status below 500
    /// is, except 429.
    ///
    /// - Parameters:
    ///   - retryAfter: the field `Retry-After`: seconds or a date (RFC 9110 §10.2.3).
    ///   - date: the field `Date`, for a date in `retryAfter`; without it, this machine's time counts.
    package init(status: Int, retryAfter: String?, date: String? = nil, body: [UInt8]) {
        let seconds = retryAfter.flatMap { Self.seconds($0, after: date) }
        switch status {
        case 200:
            self = IssuedTokens(parsing: body).map(TokenAnswer.issued) ?? .unavailable(Unavailability(.notUnderstood))
        case 429: self = .unavailable(Unavailability(.throttled, retryAfter: seconds))
        case 500...: self = .unavailable(Unavailability(.serverError, retryAfter: seconds))
        case 400..<500:
            guard let refusal = TokenRefusal(parsing: body) else {
                self = .unavailable(Unavailability(.notUnderstood))
                return
            }
            self.init(refusal)
        default: self = .unavailable(Unavailability(.notUnderstood))
        }
    }

    private static func seconds(_ retryAfter: String, after date: String?) -> Int? {
        if let seconds = Int(retryAfter) { return seconds >= 0 ? seconds : nil }
        guard let end = WallTime(httpDate: retryAfter) else { return nil }
        let pause = end.duration(since: date.flatMap { WallTime(httpDate: $0) } ?? .now())
        return max(0, Int(pause.components.seconds))
    }

    private init(_ refusal: TokenRefusal) {
        switch refusal.code {
        case .invalidGrant: self = .grantRefused(refusal)
        case .invalidRequest: self = .requestRefused(refusal)
        default: self = .clientRefused(refusal)
        }
    }
}

extension IssuedTokens {
    fileprivate init?(parsing body: [UInt8]) {
        guard let answer = try? JSONValue(parsing: body), let access = answer["access_token"]?.string, !access.isEmpty,
            answer["token_type"]?.string?.lowercased() == "bearer"
        else { return nil }
        refreshToken = answer["refresh_token"]?.string
        identityToken = answer["id_token"]?.string
        accessTokenHash = TokenHash.of(access)
    }
}

extension TokenRefusal {
    fileprivate init?(parsing body: [UInt8]) {
        guard let answer = try? JSONValue(parsing: body), let code = answer["error"]?.string,
            1...64 ~= code.utf8.count, code.utf8.allSatisfy({ 0x21...0x7E ~= $0 })
        else { return nil }
        self.init(code: Code(rawValue: code), detail: Detail(answer["error_description"]?.string))
    }
}
