import Basics

/// A request to Apple's token endpoint (“Generate and validate tokens”).
package struct TokenGrant: Sendable, CustomStringConvertible, CustomReflectable {
    private enum Kind {
        case code(String, redirectURI: String?)
        case refresh(String)
    }

    private let kind: Kind
    private let clientID: String
    private let clientSecret: String

    /// Trades an authorization code.
    ///
    /// - Parameter redirectURI: exactly if the authorization request had one: on the web.
    package static func code(
        _ code: String,
        redirectURI: String?,
        clientID: String,
        clientSecret: String
    ) -> TokenGrant {
        TokenGrant(kind: .code(code, redirectURI: redirectURI), clientID: clientID, clientSecret: clientSecret)
    }

    /// Asks whether a refresh token is valid.
    package static func refresh(_ token: String, clientID: String, clientSecret: String) -> TokenGrant {
        TokenGrant(kind: .refresh(token), clientID: clientID, clientSecret: clientSecret)
    }

    /// The body in `application/x-www-form-urlencoded`.
    package var form: String {
        var fields = [("client_id", clientID), ("client_secret", clientSecret)]
        switch kind {
        case .code(let code, let redirectURI):
            fields += [("code", code), ("grant_type", "authorization_code")]
            if let redirectURI { fields.append(("redirect_uri", redirectURI)) }
        case .refresh(let token):
            fields += [("grant_type", "refresh_token"), ("refresh_token", token)]
        }
        return fields.map { "\($0)=\($1.percentEncoded)" }.joined(separator: "&")
    }

    /// Names the client and the kind of grant only.
    package var description: String {
        switch kind {
        case .code: "authorization code of \(clientID)"
        case .refresh: "refresh token of \(clientID)"
        }
    }

    package var customMirror: Mirror { Mirror(self, children: [:]) }
}
