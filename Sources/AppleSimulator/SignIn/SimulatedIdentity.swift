package import JOSE

/// The contents of an identity token before it is signed. Nothing is checked, so it can also be one that Apple would not issue.
package struct SimulatedIdentity: Sendable, Hashable {
    /// What was issued with the token, of which the token has a hash.
    package enum Companion: Sendable, Hashable {
        /// `c_hash`, in a token that a device or a browser gets.
        case code(String)
        /// `at_hash`, in a token of the token endpoint.
        case accessToken(String)
    }

    /// Apple sent flags as text until 2023, and sends JSON booleans since 2025.
    package enum Flags: String, Sendable, Hashable, CaseIterable {
        case text, boolean
    }

    package struct Address: Sendable, Hashable {
        package var email: String
        /// `is_private_email`, which Apple leaves out if it is false.
        package var isPrivate: Bool

        package init(_ email: String, isPrivate: Bool = false) {
            self.email = email
            self.isPrivate = isPrivate
        }
    }

    package var sub: String
    /// `aud`, the client id.
    package var client: String
    /// `iat` in seconds since 1970; `exp` is a day later.
    package var issuedAt: Int64
    /// `auth_time` in seconds since 1970.
    package var authenticatedAt: Int64
    package var nonce: String?
    package var companion: Companion
    package var address: Address?
    /// `real_user_status`: 0 unsupported, 1 unknown, 2 likely real; Apple sends it at the first sign-in.
    package var realUserStatus: Int?
    package var flags = Flags.boolean

    package init(
        sub: String,
        client: String,
        issuedAt: Int64,
        authenticatedAt: Int64,
        nonce: String? = nil,
        companion: Companion,
        address: Address? = nil,
        realUserStatus: Int? = nil,
        flags: Flags = .boolean
    ) {
        self.sub = sub
        self.client = client
        self.issuedAt = issuedAt
        self.authenticatedAt = authenticatedAt
        self.nonce = nonce
        self.companion = companion
        self.address = address
        self.realUserStatus = realUserStatus
        self.flags = flags
    }

    /// The claims in Apple's order, without white space.
    package func claims(issuer: String) -> String {
        var members = [
            text("iss", issuer), text("aud", client), "\"exp\":\(issuedAt &+ 86_400)", "\"iat\":\(issuedAt)",
            text("sub", sub),
        ]
        if let nonce { members.append(text("nonce", nonce)) }
        switch companion {
        case .code(let code): members.append(text("c_hash", TokenHash.of(code)))
        case .accessToken(let token): members.append(text("at_hash", TokenHash.of(token)))
        }
        if let address {
            members += [text("email", address.email), flag("email_verified")]
            if address.isPrivate { members.append(flag("is_private_email")) }
        }
        members += ["\"auth_time\":\(authenticatedAt)", "\"nonce_supported\":true"]
        if let realUserStatus { members.append("\"real_user_status\":\(realUserStatus)") }
        return "{\(members.joined(separator: ","))}"
    }

    private func text(_ name: String, _ value: String) -> String { "\"\(name)\":\(JSONValue.quoted(value))" }

    private func flag(_ name: String) -> String {
        switch flags {
        case .text: "\"\(name)\":\"true\""
        case .boolean: "\"\(name)\":true"
        }
    }
}

extension SimulatedApple {
    package func token(for identity: SimulatedIdentity) throws(JOSEError) -> String {
        try token(claims: identity.claims(issuer: issuer))
    }
}
