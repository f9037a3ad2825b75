import AppleTokens
import Basics
import JOSE
import Testing

/// Identity tokens that Apple signed, with the keys of their time. They are not part of the project.
@Suite(.enabled(if: Vectors.areThere, "the folder ../shared/vectors with real tokens is missing"))
struct RealIdentityTests {
    struct Vector: Sendable, CustomTestStringConvertible {
        let file: String
        let keys: String
        let client: String
        let issuedAt: Int64
        var lifetime: Int64 = 86_400
        let subject: String
        var authenticatedAt: Int64?
        var email: String?
        var status: VerifiedIdentity.RealUserStatus?

        var testDescription: String { file }
    }

    private static let vectors = [
        Vector(
            file: "identity-2019-06.jws",
            keys: "apple-keys-2019-06.json",
            client: "jp.yauth.signin.service2",
            issuedAt: 1_559_709_290,
            lifetime: 600,
            subject: "000723.25da8be332964991898630947202fef0.0402"
        ),
        Vector(
            file: "token-response-2022-11.json",
            keys: "apple-keys-2022-11.json",
            client: "com.fullqueuedeveloper.FQAuthSampleiOSApp",
            issuedAt: 1_669_250_784,
            subject: "002024.1951936c61fa47debb2b076e6896ccc1.1949",
            authenticatedAt: 1_669_250_781,
            email: "fullqueuedeveloper@fullqueuedeveloper.com",
            status: .likelyReal
        ),
        Vector(
            file: "token-response-2022-12.json",
            keys: "apple-keys-2022-11.json",
            client: "com.fullqueuedeveloper.FQAuthSampleiOSApp",
            issuedAt: 1_670_126_249,
            subject: "002024.1951936c61fa47debb2b076e6896ccc1.1949",
            authenticatedAt: 1_670_126_247,
            email: "fullqueuedeveloper@fullqueuedeveloper.com"
        ),
    ]

    /// The token, and the access token that Apple sent with it.
    private func content(_ vector: Vector) throws -> (token: [UInt8], accessToken: String?) {
        let bytes = try Vectors.bytes(vector.file)
        guard vector.file.hasSuffix(".json") else { return (bytes, nil) }
        let answer = try JSONValue(parsing: bytes)
        return (Array(try #require(answer["id_token"]?.string).utf8), answer["access_token"]?.string)
    }

    private func decision(
        _ vector: Vector,
        client: String? = nil,
        accessToken: String?? = nil,
        after seconds: Int64 = 3
    ) throws -> IdentityDecision {
        let (token, own) = try content(vector)
        return IdentityVerifier(policy: IdentityPolicy(nonce: .optional)).verify(
            token: token,
            expecting: IdentityExpectation(client: ClientID(client ?? vector.client), accessToken: accessToken ?? own),
            keys: KeySet(try JSONWebKeySet(parsing: Vectors.bytes(vector.keys)), fetchedAt: nil),
            now: WallTime(seconds: vector.issuedAt + seconds)
        )
    }

    @Test("A real token is verified at its own time, with everything that it says.", arguments: vectors)
    func verified(vector: Vector) throws {
        let identity = try #require(try decision(vector).identity)
        #expect(identity.subject == Subject(vector.subject))
        #expect(identity.client == ClientID(vector.client))
        #expect(identity.issuedAt == WallTime(seconds: vector.issuedAt))
        #expect(identity.expiresAt == WallTime(seconds: vector.issuedAt + vector.lifetime))
        #expect(identity.authenticatedAt == vector.authenticatedAt.map(WallTime.init(seconds:)))
        #expect(identity.email?.address == vector.email && identity.email?.isPrivate != true)
        #expect(identity.realUserStatus == vector.status)
    }

    @Test("A real token is refused late, for another client, and with another access token.", arguments: vectors)
    func refused(vector: Vector) throws {
        #expect(try decision(vector, after: 601).summary == "token-too-old")
        #expect(try decision(vector, after: vector.lifetime + 301).summary == "expired")
        #expect(try decision(vector, client: "com.example.app").summary == "wrong-audience")
        #expect(try decision(vector, accessToken: .some("a0")).summary == "access-token-mismatch")
    }

    @Test("A real token with one bit changed anywhere is not verified.", arguments: vectors)
    func changed(vector: Vector) throws {
        let (token, _) = try content(vector)
        let verifier = IdentityVerifier(policy: IdentityPolicy(nonce: .optional))
        let keys = KeySet(try JSONWebKeySet(parsing: Vectors.bytes(vector.keys)), fetchedAt: nil)
        let expectation = IdentityExpectation(client: ClientID(vector.client))
        let now = WallTime(seconds: vector.issuedAt + 3)
        #expect(verifier.verify(token: token, expecting: expectation, keys: keys, now: now).summary == "verified")
        for index in token.indices {
            for bit in 0..<8 {
                var changed = token
                changed[index] ^= 1 << bit
                let decision = verifier.verify(token: changed, expecting: expectation, keys: keys, now: now)
                if decision.identity != nil { Issue.record("bit \(bit) of byte \(index)") }
            }
        }
    }
}
