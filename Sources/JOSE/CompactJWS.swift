/// A JWS in compact serialisation that RS256 could have signed: parsed, not yet verified.
///
/// Nothing in it may be trusted before `RSAVerifier` has verified it.
package struct CompactJWS: Sendable, Hashable {
    /// The only accepted algorithm (RFC 8725 §3.1): an allow-list of one.
    package static let algorithm = "RS256"

    package let bytes: [UInt8]
    package let header: JWSHeader
    package let payload: [UInt8]
    package let signature: [UInt8]
    /// The signed part of `bytes`: header, dot and payload.
    package let signingInputRange: Range<Int>

    package var keyID: String? { header.keyID }

    /// Parses a token. Five parts (JWE), the JSON serialisation, padding, whitespace and every encoding of the parts except
    /// the canonical one are refused.
    ///
    /// - Throws: `malformedToken`, `unsupportedAlgorithm`, `unsupportedHeader`.
    package init(parsing token: [UInt8]) throws(JOSEError) {
        guard let firstDot = token.firstIndex(of: UInt8(ascii: ".")),
            let secondDot = token[(firstDot + 1)...].firstIndex(of: UInt8(ascii: ".")),
            !token[(secondDot + 1)...].contains(UInt8(ascii: "."))
        else {
            throw JOSEError(.malformedToken, "the token does not have exactly three parts")
        }
        let text = token.span
        header = try JWSHeader(encoded: text.extracting(..<firstDot))
        guard header.algorithm == Self.algorithm else {
            throw JOSEError(.unsupportedAlgorithm, "the token's alg is not RS256")
        }
        guard !header.needsExtension else {
            throw JOSEError(
                .unsupportedHeader,
                "the token's header requires an extension (crit, b64, zip or enc) that is not supported"
            )
        }
        do {
            payload = try Base64URL.decode(text.extracting(firstDot + 1..<secondDot))
            signature = try Base64URL.decode(text.extracting((secondDot + 1)...))
        } catch {
            throw JOSEError(.malformedToken, "a part of the token: \(error.message)")
        }
        guard !signature.isEmpty else { throw JOSEError(.malformedToken, "the token has no signature") }
        signingInputRange = 0..<secondDot
        bytes = token
    }

    /// Signs a token. `header` and `payload` are used as they are.
    package static func signed(
        header: [UInt8],
        payload: [UInt8],
        by key: RSAPrivateKey
    ) throws(JOSEError) -> String {
        let input = Base64URL.encode(header) + "." + Base64URL.encode(payload)
        let signature = try key.sign(Array(input.utf8))
        return input + "." + Base64URL.encode(signature)
    }
}

/// The members of a protected header that decide how the token is processed (RFC 7515 §4).
///
/// Members that say where to find the key (`jku`, `jwk`, `x5u`, `x5c`, `x5t`) are never read: a token must not choose the key
/// that verifies it. Only the presence of a certificate chain is noted, for a helpful error message.
package struct JWSHeader: Sendable, Hashable {
    /// In bytes of JSON.
    package static let maximumLength = 1024

    /// `alg` as written.
    package let algorithm: String
    /// `kid`: 1 to 256 visible ASCII characters. It only selects one of the trusted keys.
    package private(set) var keyID: String?
    /// True if there is a member `x5c`, as in App Store Server Notifications.
    package private(set) var carriesCertificates = false
    /// True for `crit`, `b64`, `zip` or `enc`, which change what a signature or a payload means.
    private(set) var needsExtension = false

    /// Parses only the header of a token, to identify a refused token.
    ///
    /// - Throws: `malformedToken`.
    package init(ofToken token: [UInt8]) throws(JOSEError) {
        guard let dot = token.firstIndex(of: UInt8(ascii: ".")) else {
            throw JOSEError(.malformedToken, "the token has no header part")
        }
        try self.init(encoded: token.span.extracting(..<dot))
    }

    init(encoded: Span<UInt8>) throws(JOSEError) {
        guard encoded.count <= (Self.maximumLength * 4 + 2) / 3 else {
            throw JOSEError(.malformedToken, "the token's header is longer than 1 KiB")
        }
        do {
            try self.init(json: Base64URL.decode(encoded))
        } catch {
            guard error.code != .malformedToken else { throw error }
            throw JOSEError(.malformedToken, "the token's header: \(error.message)", at: error.offset)
        }
    }

    private init(json: [UInt8]) throws(JOSEError) {
        var algorithm: String?
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
        guard let algorithm else { throw JOSEError(.malformedToken, "the token's header has no alg") }
        if let keyID, !Self.isKeyID(keyID) {
            throw JOSEError(.malformedToken, "the token's kid is not 1 to 256 visible ASCII characters")
        }
        self.algorithm = algorithm
    }

    /// RFC 7515 §4.1.4 leaves the form of `kid` open. Visible ASCII cannot inject anything into a log or a path, and strings
    /// that Swift finds equal then have equal bytes.
    static func isKeyID(_ text: String) -> Bool {
        1...256 ~= text.utf8.count && text.utf8.allSatisfy { 0x21...0x7E ~= $0 }
    }
}
