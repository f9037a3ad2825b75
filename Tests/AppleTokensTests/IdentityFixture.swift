import AppleTokens
import AppleSimulator
import Basics
import JOSE

/// What the application knows about an attempt to sign in, and the token that belongs to it.
enum IdentityFixture {
    static let nonce = "8sIboJ1sQvSqH2"
    static let code = "c1f9ad3b67ef44eb4a26c1e0f2bb5f1dd.0.srzwt.pX4zPSN6hE6kCSUnjNVNLQ"
    static let client = ClientID(VerifierFixture.app)

    static var expectation: IdentityExpectation {
        IdentityExpectation(client: client, nonce: nonce, code: code)
    }

    /// The claims of a native sign-in that is verified.
    static var claims: ClaimText {
        ClaimText([
            ("iss", "\"https://appleid.apple.com\""),
            ("aud", "\"\(VerifierFixture.app)\""),
            ("exp", "\(VerifierFixture.issuedAt + 86_400)"),
            ("iat", "\(VerifierFixture.issuedAt)"),
            ("sub", "\"000768.6166f031167141e695698239959f591a.1521\""),
            ("nonce", "\"\(hexadecimal(nonce))\""),
            ("c_hash", "\"\(hash(code))\""),
            ("email", "\"k7x2m9@privaterelay.appleid.com\""),
            ("email_verified", "\"true\""),
            ("is_private_email", "\"true\""),
            ("auth_time", "\(VerifierFixture.issuedAt - 2)"),
            ("nonce_supported", "true"),
            ("real_user_status", "2"),
        ])
    }

    static func hexadecimal(_ text: String) -> String {
        SHA256.digest(Array(text.utf8).span).map { ($0 < 16 ? "0" : "") + String($0, radix: 16) }.joined()
    }

    static func hash(_ text: String) -> String {
        Base64URL.encode(Array(SHA256.digest(Array(text.utf8).span).prefix(16)))
    }

    static func decision(
        on claims: ClaimText,
        expecting expectation: IdentityExpectation = expectation,
        policy: IdentityPolicy = IdentityPolicy(),
        now: WallTime? = nil,
        header: String? = nil
    ) throws -> IdentityDecision {
        let fixture = try VerifierFixture.set()
        let token = try fixture.apple.token(claims: claims.text, header: header)
        return try decision(on: token, expecting: expectation, policy: policy, now: now)
    }

    static func decision(
        on token: String,
        expecting expectation: IdentityExpectation = expectation,
        policy: IdentityPolicy = IdentityPolicy(),
        now: WallTime? = nil
    ) throws -> IdentityDecision {
        let fixture = try VerifierFixture.set()
        return IdentityVerifier(policy: policy).verify(
            token: Array(token.utf8),
            expecting: expectation,
            keys: fixture.keys,
            now: now ?? fixture.now
        )
    }
}

extension IdentityDecision {
    /// The decision in a word or two.
    var summary: String {
        switch self {
        case .verified: "verified"
        case .refused(let refusal): refusal.reason.rawValue
        case .needsKey: "needs-key"
        }
    }

    var identity: VerifiedIdentity? {
        switch self {
        case .verified(let identity): identity
        case .refused, .needsKey: nil
        }
    }

    var detail: String? {
        switch self {
        case .refused(let refusal): refusal.detail
        case .verified, .needsKey: nil
        }
    }
}
