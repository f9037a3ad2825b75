import AppleTokens
import Basics
import JOSE

/// A code that waits in the row of its sign-in to be traded, as it is sealed there.
struct SealedCode: Sendable {
    let code: String
    let redirectURI: String?

    func seal(for client: ClientID, with keys: SealingKeys) throws(JOSEError) -> [UInt8] {
        let content = JSONValue.object([
            .init("client", .string(client.rawValue)), .init("code", .string(code)),
            .init("redirect_uri", redirectURI.map(JSONValue.string) ?? .null),
        ])
        return try keys.seal(Array(content.compactText.utf8))
    }

    /// - Throws: as `SealingKeys.open`; `notAuthentic` for the code of another client.
    init(opening sealed: [UInt8], for client: ClientID, with keys: SealingKeys) throws(JOSEError) {
        let content = try JSONValue(parsing: try keys.open(sealed))
        guard let code = content["code"]?.string,
            content["client"]?.string?.hasSameBytes(as: client.rawValue) ?? false
        else {
            throw JOSEError(.notAuthentic, "it was sealed for another client")
        }
        self.init(code: code, redirectURI: content["redirect_uri"]?.string)
    }

    init(code: String, redirectURI: String?) {
        self.code = code
        self.redirectURI = redirectURI
    }
}
