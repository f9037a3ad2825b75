import AppleTokens
import Basics
import JOSE
import Testing

@Suite("Nonces")
struct NonceTests {
    private let claims = IdentityFixture.claims

    private func decision(
        claim: String?,
        isSupported: String? = "true",
        given: String?,
        _ policy: NoncePolicy
    ) throws -> IdentityDecision {
        try IdentityFixture.decision(
            on: claims.with("nonce", claim).with("nonce_supported", isSupported),
            expecting: IdentityExpectation(client: IdentityFixture.client, nonce: given),
            policy: IdentityPolicy(nonce: policy)
        )
    }

    @Test("The nonce itself and its SHA-256 in lower-case hexadecimal belong to it.", arguments: NoncePolicy.allCases)
    func forms(policy: NoncePolicy) throws {
        let nonce = IdentityFixture.nonce
        for claim in [nonce, IdentityFixture.hexadecimal(nonce)] {
            #expect(try decision(claim: JSONValue.quoted(claim), given: nonce, policy).summary == "verified")
        }
        let others = [
            "\"\"", "7", "null", "[\"\(nonce)\"]", "\"\(nonce) \"", "\"\(nonce.dropLast())\"",
            "\"\(nonce.dropLast())3\"", JSONValue.quoted(IdentityFixture.hexadecimal(nonce + " ")),
        ]
        for claim in others {
            #expect(try decision(claim: claim, given: nonce, policy).summary == "nonce-mismatch", "\(claim)")
        }
        // The hash doesn't stand for the nonce.
        let hash = IdentityFixture.hexadecimal(nonce)
        #expect(try decision(claim: JSONValue.quoted(nonce), given: hash, policy).summary == "nonce-mismatch")
    }

    @Test("Other forms of the hash are refused by name.")
    func namedForms() throws {
        // Its digest has characters in which base64 and base64url differ.
        let nonce = try #require(
            (0..<1_000).map { "nonce \($0)" }.first {
                let text = Base64.encode(SHA256.digest(Array($0.utf8).span))
                return text.contains("+") || text.contains("/")
            }
        )
        let digest = SHA256.digest(Array(nonce.utf8).span)
        for (claim, form) in [
            (Base64.encode(digest), "base64:"), (Base64URL.encode(digest), "base64url"),
            (IdentityFixture.hexadecimal(nonce).uppercased(), "upper-case"),
        ] {
            let decision = try decision(claim: JSONValue.quoted(claim), given: nonce, .optional)
            #expect(decision.summary == "nonce-mismatch")
            #expect(decision.detail?.contains(form) == true, "\(decision)")
        }
    }

    @Test("Each policy decides about each pair of a claim and a given nonce.")
    func policies() throws {
        let own = JSONValue.quoted(IdentityFixture.nonce)
        struct Case {
            let claim: String?
            let isSupported: String?
            let given: String?
            /// For `required`, `issued` and `optional`.
            let summaries: [String]
        }
        let missing = Array(repeating: "nonce-missing", count: 3)
        let ifOptional = ["nonce-missing", "nonce-missing", "verified"]
        var cases: [Case] = []
        for supported in [nil, "false", "\"false\"", "true", "\"true\""] {
            let isSupported = supported == "true" || supported == "\"true\""
            cases += [
                Case(claim: own, isSupported: supported, given: nil, summaries: missing),
                Case(
                    claim: own,
                    isSupported: supported,
                    given: IdentityFixture.nonce,
                    summaries: Array(repeating: "verified", count: 3)
                ),
                Case(
                    claim: own,
                    isSupported: supported,
                    given: "another nonce",
                    summaries: Array(repeating: "nonce-mismatch", count: 3)
                ),
                Case(claim: nil, isSupported: supported, given: nil, summaries: ifOptional),
                Case(
                    claim: nil,
                    isSupported: supported,
                    given: IdentityFixture.nonce,
                    summaries: isSupported ? missing : ifOptional
                ),
            ]
        }
        for one in cases {
            let summaries = try [.required, .issued, .optional].map { policy in
                try decision(claim: one.claim, isSupported: one.isSupported, given: one.given, policy).summary
            }
            #expect(summaries == one.summaries, "\(one)")
        }
        #expect(try decision(claim: "7", given: nil, .optional).summary == "nonce-missing")
    }

    @Test("A nonce that siwad issued is recognised for its client until it is late, also after a rotation of the keys.")
    func issued() throws {
        let lines = try ["old", "new"].map { name in try SealingKeys.newLine(name: name) }
        let old = try IssuedNonces(keys: SealingKeys(parsing: lines[0]))
        let both = try IssuedNonces(keys: SealingKeys(parsing: "\(lines[1])\n\(lines[0])"))
        let stranger = try IssuedNonces(keys: SealingKeys(parsing: SealingKeys.newLine(name: "old")))
        let (client, now) = (IdentityFixture.client, WallTime(seconds: 1_790_000_000))
        let nonce = try old.issue(for: client, now: now)
        #expect(try nonce != old.issue(for: client, now: now))
        for nonces in [old, both] {
            #expect(try nonces.find(nonce, for: client, now: now) == .issued)
            #expect(try nonces.find(nonce, for: client, now: now + .seconds(600)) == .issued)
            #expect(try nonces.find(nonce, for: client, now: now + .seconds(601)) == .late)
            #expect(try nonces.find(nonce, for: ClientID("com.example.other"), now: now) == .foreign)
        }
        #expect(try stranger.find(nonce, for: client, now: now) == .foreign)
        #expect(try old.find(both.issue(for: client, now: now), for: client, now: now) == .foreign)
        for text in ["", "8sIboJ1sQvSqH2", nonce + "A", String(nonce.dropLast()), nonce + "="] {
            #expect(try old.find(text, for: client, now: now) == .foreign, "\(text)")
        }
        let bytes = try Base64URL.decode(nonce)
        for place in bytes.indices {
            var changed = bytes
            changed[place] ^= 1
            #expect(try old.find(Base64URL.encode(changed), for: client, now: now) == .foreign, "\(place)")
        }
    }
}
