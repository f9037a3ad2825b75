import AppleTokens
import Basics
import JOSE

/// The claims of an identity token that Apple signed: it is verified only if each claim, read from a tree, is in order. The same
/// claims with an invalid signature are refused before they are read.
enum IdentityProperties {
    private static let nonce = "8sIboJ1sQvSqH2"
    private static let code = "c1f9ad3b67ef44eb4a26c1e0f2bb5f1dd.0.srzwt.pX4zPSN6hE6kCSUnjNVNLQ"
    private static let client = ClientID("com.example.app")
    private static let expectation = IdentityExpectation(client: client, nonce: nonce, code: code)
    private static let now = VerifierFixture.now

    nonisolated(unsafe) private static let verifier = IdentityVerifier(policy: IdentityPolicy())
    private static let key = Result { () throws(JOSEError) in try RSAPrivateKey.generate() }
    private static let keys = Result {
        KeySet([try JSONWebKey(keyID: VerifierFixture.keyID, publicKey: key.get().publicKey)], fetchedAt: nil)
    }

    static func check(_ input: [UInt8]) {
        guard let keys = try? keys.get() else { refuse("a key can be made") }
        let unsigned = Array((VerifierFixture.header + "." + Base64URL.encode(input) + ".AA").utf8)
        let unverified = verifier.verify(token: unsigned, expecting: expectation, keys: keys, now: now)
        // A token of more than 16 KiB is not read at all.
        if case .refused(let refusal) = unverified, refusal.reason == .malformedToken { return }
        guard case .refused(let refusal) = unverified, refusal.reason == .badSignature else {
            refuse("claims count for nothing without a signature")
        }
        let tree = try? JSONValue(parsing: input)
        // A signature takes long, and what is not JSON is refused in any case.
        guard tree != nil || input.count.isMultiple(of: 64) else { return }
        guard let token = signed(input) else { refuse("claims can be signed") }
        let decision = verifier.verify(token: token, expecting: expectation, keys: keys, now: now)
        let checks = verifier.explain(token: token, expecting: expectation, keys: keys, now: now)
        let isExplained = checks.allSatisfy { $0.passed != false }
        switch decision {
        case .verified(let identity):
            require(isExplained, "an explanation agrees with the decision")
            check(identity, of: tree)
        case .refused(let refusal):
            require(!isExplained, "an explanation agrees with the decision")
            require(
                ![.unsupportedAlgorithm, .badSignature, .unknownKey, .accessTokenMismatch].contains(refusal.reason),
                "only claims are a reason to refuse what Apple signed"
            )
            require(tree != nil || refusal.reason == .malformedToken, "what is not JSON is malformed")
        case .needsKey:
            refuse("a key that is there is found")
        }
    }

    private static func signed(_ claims: [UInt8]) -> [UInt8]? {
        let input = VerifierFixture.header + "." + Base64URL.encode(claims)
        guard let signature = try? key.get().sign(Array(input.utf8)) else { return nil }
        return Array((input + "." + Base64URL.encode(signature)).utf8)
    }

    private static func check(_ identity: VerifiedIdentity, of tree: JSONValue?) {
        guard let claims = tree else { refuse("a verified token is strict JSON") }
        require(claims["events"] == nil, "a notification is no identity token")
        require(claims["iss"]?.string == VerifierFixture.issuer, "the issuer is Apple")
        require(claims["aud"]?.string == client.rawValue && identity.client == client, "the audience is the client")
        require([nonce, hexadecimal(nonce)].contains(claims["nonce"]?.string), "the nonce is the one given")
        require(claims["c_hash"]?.string == TokenHash.of(code), "the code is the one given")
        require(claims["sub"]?.string == identity.subject.rawValue, "the subject is the claimed one")
        require(1...255 ~= identity.subject.rawValue.utf8.count, "a subject has 1 to 255 bytes")
        require(identity.issuedAt <= now + .seconds(300), "it is not from the future")
        require(now.duration(since: identity.issuedAt) <= .seconds(600), "it is at most ten minutes old")
        require(identity.expiresAt + .seconds(300) >= now, "it has not expired")
        if let email = identity.email {
            require(claims["email"]?.string == email.address, "the address is the claimed one")
            require(isSet(claims["email_verified"]), "an address is verified")
            require(email.isPrivate == isSet(claims["is_private_email"]), "an address is private if Apple says so")
            require(1...320 ~= email.address.utf8.count, "an address has 1 to 320 bytes")
            require(!email.address.utf8.contains { $0 < 0x20 || $0 == 0x7F }, "an address has no control character")
        }
    }

    /// Apple writes flags as text or booleans.
    private static func isSet(_ claim: JSONValue?) -> Bool { claim == .boolean(true) || claim == .string("true") }

    private static func hexadecimal(_ text: String) -> String {
        SHA256.digest(Array(text.utf8).span).map { ($0 < 16 ? "0" : "") + String($0, radix: 16) }.joined()
    }
}
