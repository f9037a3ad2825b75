/// An RSA public key for RS256 with its name: a member of a JWK set (RFC 7517), checked.
package struct JSONWebKey: Sendable, Hashable {
    /// `kid`: 1 to 256 visible ASCII characters.
    package let keyID: String

    /// The key.
    package let publicKey: RSAPublicKey

    /// Names a key.
    ///
    /// - Throws: `unusableKey` where `keyID` is not 1 to 256 visible ASCII characters.
    package init(keyID: String, publicKey: RSAPublicKey) throws(JOSEError) {
        guard JWSHeader.isKeyID(keyID) else {
            throw Self.unusable("kid is not 1 to 256 visible ASCII characters")
        }
        self.keyID = keyID
        self.publicKey = publicKey
    }

    /// Reads a key. What the key says of its own use counts: a key for something else is refused, and so is one that carries
    /// its private half, since it is no longer anyone's own.
    ///
    /// - Throws: `unusableKey`.
    package init(_ value: JSONValue) throws(JOSEError) {
        guard value.kind == .object else { throw Self.unusable("it is not a JSON object") }
        guard value["kty"]?.string == "RSA" else { throw Self.unusable("kty is not RSA") }
        for name in Self.privateMembers where value[name] != nil {
            throw Self.unusable("it carries private members")
        }
        if let algorithm = value["alg"], algorithm.string != CompactJWS.algorithm {
            throw Self.unusable("alg is not RS256")
        }
        if let use = value["use"], use.string != "sig" { throw Self.unusable("use is not sig") }
        if let operations = value["key_ops"], operations.array?.contains(.string("verify")) != true {
            throw Self.unusable("key_ops does not include verify")
        }
        guard let keyID = value["kid"]?.string else { throw Self.unusable("kid is missing or not a string") }
        try self.init(
            keyID: keyID,
            publicKey: RSAPublicKey(modulus: Self.number("n", of: value), exponent: Self.number("e", of: value))
        )
    }

    /// The key as compact JSON, always in the same spelling: for keeping it.
    package var json: String {
        JSONValue.object([
            JSONValue.Member("kty", .string("RSA")),
            JSONValue.Member("kid", .string(keyID)),
            JSONValue.Member("use", .string("sig")),
            JSONValue.Member("alg", .string(CompactJWS.algorithm)),
            JSONValue.Member("n", .string(Base64URL.encode(publicKey.modulus))),
            JSONValue.Member("e", .string(Base64URL.encode(publicKey.exponentBytes))),
        ]).compactText
    }

    /// The private numbers of an RSA key (RFC 7518 §6.3.2) and the key of a symmetric one.
    private static let privateMembers = ["d", "p", "q", "dp", "dq", "qi", "oth", "k"]

    private static func number(_ name: String, of value: JSONValue) throws(JOSEError) -> [UInt8] {
        guard let text = value[name]?.string else { throw unusable("\(name) is missing or not a string") }
        do {
            return try Base64URL.decode(text)
        } catch {
            throw unusable("\(name) is not canonical base64url")
        }
    }

    private static func unusable(_ message: String) -> JOSEError {
        JOSEError(code: .unusableKey, message: message)
    }
}

extension RSAPublicKey {
    /// The key's thumbprint: RFC 7638 §3 with SHA-256, in base64url. The same for the same key whatever it is called.
    package var thumbprint: String {
        let text =
            "{\"e\":\"\(Base64URL.encode(exponentBytes))\",\"kty\":\"RSA\",\"n\":\"\(Base64URL.encode(modulus))\"}"
        let bytes = Array(text.utf8)
        return Base64URL.encode(SHA256.digest(bytes.span))
    }
}
