/// An RSA public key for RS256 with its name: a member of a JWK set (RFC 7517), checked.
package struct JSONWebKey: Sendable, Hashable {
    /// `kid`: 1 to 256 visible ASCII characters.
    package let keyID: String

    package let publicKey: RSAPublicKey

    /// - Throws: `unusableKey` unless `keyID` is 1 to 256 visible ASCII characters.
    package init(keyID: String, publicKey: RSAPublicKey) throws(JOSEError) {
        guard JWSHeader.isKeyID(keyID) else {
            throw JOSEError(.unusableKey, "kid is not 1 to 256 visible ASCII characters")
        }
        self.keyID = keyID
        self.publicKey = publicKey
    }

    /// Parses a key. A key for another use is refused, and so is a key that is published with its private half.
    ///
    /// - Throws: `unusableKey`.
    package init(_ value: JSONValue) throws(JOSEError) {
        guard value.kind == .object else { throw JOSEError(.unusableKey, "it is not a JSON object") }
        guard value["kty"]?.string == "RSA" else { throw JOSEError(.unusableKey, "kty is not RSA") }
        for name in Self.privateMembers where value[name] != nil {
            throw JOSEError(.unusableKey, "it carries private members")
        }
        if let algorithm = value["alg"], algorithm.string != CompactJWS.algorithm {
            throw JOSEError(.unusableKey, "alg is not RS256")
        }
        if let use = value["use"], use.string != "sig" { throw JOSEError(.unusableKey, "use is not sig") }
        if let operations = value["key_ops"], operations.array?.contains(.string("verify")) != true {
            throw JOSEError(.unusableKey, "key_ops does not include verify")
        }
        guard let keyID = value["kid"]?.string else { throw JOSEError(.unusableKey, "kid is missing or not a string") }
        try self.init(
            keyID: keyID,
            publicKey: RSAPublicKey(modulus: Self.number("n", of: value), exponent: Self.number("e", of: value))
        )
    }

    /// The key as compact JSON, the same text for equal keys.
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

    /// The private numbers of an RSA key (RFC 7518 §6.3.2) and the secret of a symmetric key.
    private static let privateMembers = ["d", "p", "q", "dp", "dq", "qi", "oth", "k"]

    private static func number(_ name: String, of value: JSONValue) throws(JOSEError) -> [UInt8] {
        guard let text = value[name]?.string else {
            throw JOSEError(.unusableKey, "\(name) is missing or not a string")
        }
        do {
            return try Base64URL.decode(text)
        } catch {
            throw JOSEError(.unusableKey, "\(name) is not canonical base64url")
        }
    }
}

extension RSAPublicKey {
    /// The thumbprint of RFC 7638 §3 with SHA-256, in base64url. It does not depend on `kid`.
    package var thumbprint: String {
        let text =
            "{\"e\":\"\(Base64URL.encode(exponentBytes))\",\"kty\":\"RSA\",\"n\":\"\(Base64URL.encode(modulus))\"}"
        let bytes = Array(text.utf8)
        return Base64URL.encode(SHA256.digest(bytes.span))
    }
}

/// The usable keys of a JWK set (RFC 7517 §5), and the reasons why other keys are ignored.
package struct JSONWebKeySet: Sendable, Hashable {
    package struct IgnoredKey: Sendable, Hashable {
        /// Its `kid`, if it has the accepted form.
        package let keyID: String?
        /// A clause such as "use is not sig".
        package let reason: String
    }

    package static let maximumCount = 64

    /// The keys, in the order of the set, each `kid` once. Not empty.
    package let keys: [JSONWebKey]

    /// In the order of the set.
    package let ignored: [IgnoredKey]

    /// - Throws: `unusableKeySet` if it is empty, too large or has a `kid` twice.
    package init(_ keys: [JSONWebKey]) throws(JOSEError) {
        guard 1...Self.maximumCount ~= keys.count, Set(keys.map(\.keyID)).count == keys.count else {
            throw JOSEError(.unusableKeySet, "a key set has 1 to 64 keys, each with a kid of its own")
        }
        self.keys = keys
        ignored = []
    }

    /// Parses a key set and ignores unusable keys, whatever their `kid`. Equal keys count once. If several usable keys share
    /// a `kid`, all of them are ignored.
    ///
    /// - Throws: `malformedJSON`; `unusableKeySet` if it is JSON but not a key set, too large, or has no usable key.
    package init(parsing json: [UInt8]) throws(JOSEError) {
        guard let members = try JSONValue(parsing: json)["keys"]?.array else {
            throw JOSEError(
                .unusableKeySet,
                "this is not a key set: a JSON object with an array named keys is expected"
            )
        }
        guard members.count <= Self.maximumCount else {
            throw JOSEError(.unusableKeySet, "the key set has more than 64 keys")
        }
        let candidates = members.map { member in
            Result { () throws(JOSEError) in try JSONWebKey(member) }
        }
        var materials: [String: Set<RSAPublicKey>] = [:]
        for case .success(let key) in candidates { materials[key.keyID, default: []].insert(key.publicKey) }
        var keys: [JSONWebKey] = []
        var ignored: [IgnoredKey] = []
        for (candidate, member) in zip(candidates, members) {
            switch candidate {
            case .failure(let error):
                let keyID = member["kid"]?.string.flatMap { JWSHeader.isKeyID($0) ? $0 : nil }
                ignored.append(IgnoredKey(keyID: keyID, reason: error.message))
            case .success(let key) where materials[key.keyID]?.count != 1:
                ignored.append(IgnoredKey(keyID: key.keyID, reason: "several keys have this kid"))
            case .success(let key):
                if !keys.contains(key) { keys.append(key) }
            }
        }
        guard !keys.isEmpty else { throw JOSEError(.unusableKeySet, "the key set has no usable key") }
        self.keys = keys
        self.ignored = ignored
    }

    /// The usable keys as compact JSON, as a key endpoint serves them.
    package var json: String {
        "{\"keys\":[" + keys.map(\.json).joined(separator: ",") + "]}"
    }
}
