/// The protected header of a compact JWS, as far as it is looked at: RFC 7515 §4.
///
/// Where a token says that its key is to be found (`jku`, `jwk`, `x5u`, `x5c`, `x5t`) is never read: a token doesn't choose
/// the key that it is checked with. Of these only the presence of a certificate chain is noted, for the sake of a helpful answer.
package struct JWSHeader: Sendable, Hashable {
    /// The longest header that is read, in bytes of JSON.
    package static let maximumLength = 1024

    /// `alg` as it is written. Nothing may be concluded from it but that it is or isn't the algorithm expected.
    package let algorithm: String

    /// `kid`: 1 to 256 visible ASCII characters. Selects a key among those that are trusted anyway, and nothing else.
    package let keyID: String?

    /// Whether there is a member `x5c`, as in App Store Server Notifications.
    package let carriesCertificates: Bool

    /// Whether the header asks for processing that RS256 over the payload doesn't include: `crit`, `b64`, `zip`, `enc`.
    let needsExtension: Bool

    /// Parses the header of a compact JWS and nothing else of it: for telling what a refused token was meant to be.
    ///
    /// - Throws: `malformedToken`.
    package init(ofToken token: [UInt8]) throws(JOSEError) {
        guard let dot = token.firstIndex(of: UInt8(ascii: ".")) else {
            throw JOSEError(code: .malformedToken, message: "the token has no header part")
        }
        try self.init(encoded: token.span.extracting(..<dot))
    }

    init(encoded: Span<UInt8>) throws(JOSEError) {
        guard encoded.count <= (Self.maximumLength * 4 + 2) / 3 else {
            throw JOSEError(code: .malformedToken, message: "the token's header is longer than 1 KiB")
        }
        do {
            try self.init(json: Base64URL.decode(encoded))
        } catch {
            guard error.code != .malformedToken else { throw error }
            throw JOSEError(
                code: .malformedToken,
                message: "the token's header: \(error.message)",
                offset: error.offset
            )
        }
    }

    private init(json: [UInt8]) throws(JOSEError) {
        var algorithm: String?
        var keyID: String?
        var carriesCertificates = false
        var needsExtension = false
        var reader = JSONReader(json)
        try reader.beginObject()
        while try reader.nextMember() {
            if reader.nameIs("kid") {
                keyID = try reader.string()
            } else if reader.nameIs("alg") {
                algorithm = try reader.string()
            } else {
                if reader.nameIs("crit") || reader.nameIs("b64") || reader.nameIs("zip") || reader.nameIs("enc") {
                    needsExtension = true
                } else if reader.nameIs("x5c") {
                    carriesCertificates = true
                }
                try reader.skipValue()
            }
        }
        try reader.end()
        guard let algorithm else {
            throw JOSEError(code: .malformedToken, message: "the token's header has no alg")
        }
        if let keyID, !Self.isKeyID(keyID) {
            throw JOSEError(code: .malformedToken, message: "the token's kid is not 1 to 256 visible ASCII characters")
        }
        self.algorithm = algorithm
        self.keyID = keyID
        self.carriesCertificates = carriesCertificates
        self.needsExtension = needsExtension
    }

    /// Whether this can be a `kid` here. RFC 7515 §4.1.4 leaves its form open; within visible ASCII no `kid` can carry
    /// anything into a log or a path, and strings that Swift finds equal have equal bytes.
    static func isKeyID(_ text: String) -> Bool {
        1...256 ~= text.utf8.count && text.utf8.allSatisfy { 0x21...0x7E ~= $0 }
    }
}
