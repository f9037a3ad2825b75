package import JOSE

/// The row of `siwa.apple_tokens` that a sealed refresh token belongs to.
///
/// The sealed content names account and client. Opening compares them with the row, so that a sealed text that was copied to
/// another row opens nothing.
package struct SealedRefreshToken: Sendable, Hashable {
    package let account: Int64
    package let client: ClientID

    package init(account: Int64, client: ClientID) {
        self.account = account
        self.client = client
    }

    package func seal(_ token: String, with keys: SealingKeys) throws(JOSEError) -> [UInt8] {
        try keys.seal(Array(content(token).utf8))
    }

    /// - Throws: as `SealingKeys.open`; `notAuthentic` for the token of another person or client.
    package func open(_ sealed: [UInt8], with keys: SealingKeys) throws(JOSEError) -> String {
        try token(in: keys.open(sealed))
    }

    /// The token in the content of an opened text.
    ///
    /// - Throws: `notAuthentic` for the token of another person or client.
    package func token(in opened: [UInt8]) throws(JOSEError) -> String {
        // The content has one form, so comparing it as a whole compares each member.
        guard let token = try JSONValue(parsing: opened)["token"]?.string, opened == Array(content(token).utf8) else {
            throw JOSEError(.notAuthentic, "it was sealed for another person or client")
        }
        return token
    }

    private func content(_ token: String) -> String {
        JSONValue.object([
            .init("account", .number(JSONNumber(account))), .init("client", .string(client.rawValue)),
            .init("token", .string(token)),
        ]).compactText
    }
}
