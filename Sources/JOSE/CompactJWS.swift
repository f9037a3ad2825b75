/// A JWS in compact serialisation that RS256 could have signed: parsed, not yet verified.
///
/// Nothing in it may be believed before `RSAVerifier` has said so; the payload is at hand for that moment.
package struct CompactJWS: Sendable, Hashable {
    /// The only algorithm that is accepted (RFC 8725 §3.1): an allow-list of one.
    package static let algorithm = "RS256"

    /// The token as it came.
    package let bytes: [UInt8]

    /// The header.
    package let header: JWSHeader

    /// The payload, decoded: any bytes.
    package let payload: [UInt8]

    /// The signature, decoded. Not empty.
    package let signature: [UInt8]

    /// The part of `bytes` that is signed: header and payload with the dot between them.
    package let signingInputRange: Range<Int>

    /// `kid`, if the header has it.
    package var keyID: String? { header.keyID }

    /// Parses a token. Five parts (JWE), the JSON serialisation, padding, whitespace and every spelling of the parts but
    /// the canonical one are refused.
    ///
    /// - Throws: `malformedToken`, `unsupportedAlgorithm`, `unsupportedHeader`.
    package init(parsing token: [UInt8]) throws(JOSEError) {
        let (firstDot, secondDot) = try Self.dots(in: token)
        let text = token.span
        header = try JWSHeader(encoded: text.extracting(..<firstDot))
        guard header.algorithm == Self.algorithm else {
            throw JOSEError(code: .unsupportedAlgorithm, message: "the token's alg is not RS256")
        }
        guard !header.needsExtension else {
            throw JOSEError(
                code: .unsupportedHeader,
                message: "the token's header asks for an extension (crit, b64, zip or enc) that is not supported"
            )
        }
        do {
            payload = try Base64URL.decode(text.extracting(firstDot + 1..<secondDot))
            signature = try Base64URL.decode(text.extracting((secondDot + 1)...))
        } catch {
            throw JOSEError(code: .malformedToken, message: "a part of the token: \(error.message)")
        }
        guard !signature.isEmpty else {
            throw JOSEError(code: .malformedToken, message: "the token has no signature")
        }
        signingInputRange = 0..<secondDot
        bytes = token
    }

    /// A signed token: what a sender does.
    ///
    /// - Parameters:
    ///   - header: the JSON text of the header, used as it is.
    ///   - payload: the payload, used as it is.
    /// - Throws: `cryptography`.
    package static func signed(
        header: [UInt8],
        payload: [UInt8],
        by key: RSAPrivateKey
    ) throws(JOSEError) -> String {
        let input = Base64URL.encode(header) + "." + Base64URL.encode(payload)
        let signature = try key.sign(Array(input.utf8))
        return input + "." + Base64URL.encode(signature)
    }

    /// The places of the two dots.
    private static func dots(in token: [UInt8]) throws(JOSEError) -> (Int, Int) {
        let text = token.span
        guard let first = text.firstIndex(of: UInt8(ascii: "."), from: 0),
            let second = text.firstIndex(of: UInt8(ascii: "."), from: first + 1),
            text.firstIndex(of: UInt8(ascii: "."), from: second + 1) == nil
        else {
            throw JOSEError(code: .malformedToken, message: "the token does not have exactly three parts")
        }
        return (first, second)
    }
}
