import AppleSimulator
import AppleTokens
import Basics
import Ingest
import JOSE
import Postgres
import SignIn
import Telemetry
import Testing

@testable import SignInFlow

@Suite("Bindings of a sign-in", .timeLimit(.minutes(5)))
struct BindingTests {
    @Test("Another person's code is refused by the hash in the token, and Apple is not asked.")
    func codeInjection() async throws {
        try await FlowFixture.with { flow in
            var device = try flow.apple.signIn()
            device.code = try flow.apple.signIn(person: "bob").code
            #expect(try await flow.refusal(flow.request(device)) == .codeMismatch)
            #expect(flow.apple.requests == 0)
            #expect(try await flow.texts("SELECT sign_in_id::text FROM siwa.sign_ins").isEmpty)
        }
    }

    @Test("A code is refused with a token that has no hash of it, and Apple is not asked.")
    func codeWithoutHash() async throws {
        try await FlowFixture.with { flow in
            var device = try flow.apple.signIn()
            let now = WallTime.now().wholeSeconds
            // As in the tokens out of Apple's own answers.
            let identity = SimulatedIdentity(
                sub: device.subject,
                client: "com.example.one",
                issuedAt: now,
                authenticatedAt: now,
                nonce: "nonce-of-ada",
                companion: .accessToken("a1")
            )
            device.token = try flow.apple.signer.token(for: identity)
            for exchange in [CodeExchange.preferred, .required] {
                try flow.replace(FlowFixture.Rules(exchange: exchange))
                #expect(try await flow.refusal(flow.request(device, session: "s1")) == .codeMismatch)
            }
            #expect(flow.apple.requests == 0)
            #expect(try await flow.texts("SELECT sign_in_id::text FROM siwa.sign_ins").isEmpty)
            try flow.replace(FlowFixture.Rules())
            #expect(try await flow.signIn(flow.request(device, code: false)).refreshToken == .none)
        }
    }

    @Test(
        "A redirect URI reaches Apple exactly if the request has one, also with a code that is traded in the background."
    )
    func redirectURI() async throws {
        try await FlowFixture.with { flow in
            let uri = "https://example.com/callback?a=b&c=%20d"
            let member = ",\"redirect_uri\":\(JSONValue.quoted(uri))"
            func signIn(_ nonce: String, _ members: String) async throws -> SignInAnswer.RefreshToken {
                let device = try flow.apple.signIn(nonce: nonce, members: members)
                return try await flow.signIn(flow.request(device, nonce: nonce, members: members)).refreshToken
            }
            #expect(try await signIn("nonce-one", "") == .stored)
            #expect(try await signIn("nonce-two", member) == .stored)
            try flow.apple.behave("{\"status\":500,\"times\":2}")
            #expect(try await signIn("nonce-three", member) == .pending)
            #expect(try await signIn("nonce-four", "") == .pending)
            async let background: Void = flow.service.runExchanges()
            try await eventually("the codes to be traded") {
                try await flow.texts("SELECT refresh FROM siwa.sign_ins") == ["stored", "stored", "stored", "stored"]
            }
            flow.service.finishExchanges()
            await background
            let sent = flow.apple.forms.map { form in
                form.names.contains("redirect_uri") ? form["redirect_uri"] ?? "" : nil
            }
            #expect(sent[..<4] == [nil, uri, uri, nil])
            #expect(sent[4...].count { $0 == uri } == 1 && sent[4...].count { $0 == nil } == 1)
        }
    }

    /// A way in which the identity token of Apple's answer can be another one than Apple's for this sign-in.
    enum Fault: CaseIterable {
        case none, issuer, client, signature, unknownKey, expired, noToken
        /// It belongs to another access token.
        case otherHash
        /// It has `c_hash` in place of `at_hash`, as a token that a device gets.
        case noHash
        case otherPerson
    }

    /// Lets Apple answer the next code with an identity token that has this fault.
    ///
    /// - Parameter nonce: in the identity token; nil: it has none.
    private static func answer(
        with fault: Fault,
        to device: LocalApple.Device,
        nonce: String? = nil,
        by apple: LocalApple
    ) throws {
        guard fault != .noToken else {
            try apple.behave(
                #"{"body":"{\"access_token\":\"a1\",\"token_type\":\"Bearer\",\"refresh_token\":\"r1\"}"}"#
            )
            return
        }
        let issuedAt = WallTime.now().wholeSeconds - (fault == .expired ? 90_000 : 0)
        let identity = SimulatedIdentity(
            sub: fault == .otherPerson ? SimulatedEvent.randomSubject() : device.subject,
            client: fault == .client ? "com.example.two" : "com.example.one",
            issuedAt: issuedAt,
            authenticatedAt: issuedAt,
            nonce: nonce,
            companion: fault == .noHash ? .code(device.code) : .accessToken(fault == .otherHash ? "a2" : "a1")
        )
        let usual = apple.signer
        let signer: SimulatedApple =
            switch fault {
            case .none, .client, .expired, .noToken, .otherHash, .noHash, .otherPerson: usual
            case .issuer:
                try SimulatedApple(key: usual.key, keyID: usual.keyID, issuer: "https://appleid.apple.com.example")
            case .signature: try SimulatedApple(key: .generate(), keyID: usual.keyID)
            case .unknownKey: try .generate()
            }
        try apple.answer(access: "a1", identity: signer.token(for: identity))
    }

    @Test(
        "Nothing of an answer is stored whose identity token is not Apple's for this sign-in, also without a presented one.",
        arguments: Fault.allCases,
        [true, false]
    )
    func unverifiedAnswer(fault: Fault, isPresented: Bool) async throws {
        // In preferred mode, an answer without a token stops nobody who presents one.
        let rules = FlowFixture.Rules(exchange: fault == .noToken && isPresented ? .required : .preferred)
        try await FlowFixture.with(rules) { flow in
            let device = try flow.apple.signIn()
            // Then the unknown key may be fetched.
            try await eventually("the first key set") { !flow.keys.keys.isEmpty }
            // The nonce was compared with the presented token, and is compared with Apple's only without one.
            let nonce = isPresented ? nil : "nonce-of-ada"
            try Self.answer(with: fault, to: device, nonce: nonce, by: flow.apple)
            let refusal = try await flow.refusal(flow.request(device, session: "s1", token: isPresented))
            // With a code alone, Apple's answer says who signs in.
            let isFitting = fault == .none || fault == .otherPerson && !isPresented
            #expect(refusal == (isFitting ? nil : .appleUnexpected))
            for table in ["sign_ins", "apple_tokens", "accounts", "account_sessions"] {
                let count = try await flow.texts("SELECT 1::text FROM siwa.\(table)").count
                #expect(count == (isFitting ? 1 : 0), "\(table)")
            }
        }
    }

    @Test(
        "Nothing of an answer in the background is stored whose identity token is not Apple's for this sign-in.",
        arguments: [Fault.none, .otherPerson, .otherHash, .noHash, .client, .signature, .noToken]
    )
    func backgroundAnswer(fault: Fault) async throws {
        try await FlowFixture.with { flow in
            try flow.apple.behave("{\"status\":500}")
            let device = try flow.apple.signIn()
            #expect(try await flow.signIn(flow.request(device, session: "s1")).refreshToken == .pending)
            try Self.answer(with: fault, to: device, by: flow.apple)
            async let background: Void = flow.service.runExchanges()
            try await eventually("the code to be traded") {
                try await flow.texts("SELECT refresh FROM siwa.sign_ins") != ["pending"]
            }
            flow.service.finishExchanges()
            await background
            let isFitting = fault == .none
            #expect(try await flow.texts("SELECT refresh FROM siwa.sign_ins") == [isFitting ? "stored" : "lost"])
            #expect(try await flow.texts("SELECT state FROM siwa.apple_tokens") == (isFitting ? ["valid"] : []))
            #expect(try await flow.texts("SELECT code_sealed::text FROM siwa.sign_ins") == ["NULL"])
            #expect(flow.log.text.contains("does not fit the sign-in") == !isFitting)
            #expect(flow.log.text.contains("that came in the background can't be stored") == !isFitting)
            let count = "siwad_sign_ins_total{outcome=\"apple-unexpected\"} \(isFitting ? 0 : 1)\n"
            #expect(flow.metrics.registry.prometheusText().contains(count))
            // The code was used, and the identity token that was presented still decides the sign-in.
            #expect(flow.apple.requests == 2)
            #expect(try await flow.texts("SELECT session_id FROM siwa.live_sessions") == ["s1"])
        }
    }

    @Test(
        "In preferred mode, an answer of Apple's that can't be verified loses the refresh token and stops nobody.",
        arguments: [
            (false, "apple-unexpected", "it has no identity token"), (true, "keys-unavailable", "keys-unavailable"),
        ]
    )
    func unverifiableAnswer(hasToken: Bool, outcome: String, cause: String) async throws {
        try await FlowFixture.with { flow in
            try await eventually("the first key set") { !flow.keys.keys.isEmpty }
            let device = try flow.apple.signIn()
            if hasToken {
                try flow.apple.behave(#"{"rotate_keys":true}"#)
                flow.apple.breakKeySet()
            } else {
                try Self.answer(with: .noToken, to: device, by: flow.apple)
            }
            let request = try flow.request(device, session: "s1")
            let answer = try await flow.signIn(request)
            #expect(answer.refreshToken == .lost && answer.session?.isLive == true && !answer.isRepeated)
            let counts = flow.metrics.registry.prometheusText()
            for counted in [outcome, "signed-in"] {
                #expect(counts.contains("siwad_sign_ins_total{outcome=\"\(counted)\"} 1\n"), "\(counted)")
            }
            #expect(flow.log.count("\"error\"", cause) == 1)

            let repeated = try await flow.signIn(request)
            #expect(repeated.refreshToken == .lost && repeated.isRepeated)
            #expect(flow.apple.requests == 1)
            // Nothing is left for the background.
            let rows = "SELECT concat_ws(' ', refresh, code_sealed, code_due_at) FROM siwa.sign_ins"
            #expect(try await flow.texts(rows) == ["lost"])
            #expect(try await flow.texts("SELECT state FROM siwa.apple_tokens").isEmpty)
        }
    }

    @Test("If Apple's key for its answer in the background can't be fetched, the refresh token is stored once it can.")
    func backgroundAnswerWithoutKey() async throws {
        try await FlowFixture.with { flow in
            try await eventually("the first key set") { !flow.keys.keys.isEmpty }
            try flow.apple.behave("{\"status\":500}")
            #expect(try await flow.signIn(flow.request(flow.apple.signIn())).refreshToken == .pending)
            try flow.apple.behave("{\"rotate_keys\":true}")
            flow.apple.breakKeySet()
            async let background: Void = flow.service.runExchanges()
            // The one that the new key causes, and one after it has failed.
            try await eventually("the key set to be fetched") { flow.apple.fetches >= 3 }
            #expect(try await flow.texts("SELECT refresh FROM siwa.sign_ins") == ["pending"])
            flow.apple.repairKeySet()
            try await eventually("the token to be stored") {
                try await flow.texts("SELECT refresh FROM siwa.sign_ins") == ["stored"]
            }
            flow.service.finishExchanges()
            await background
            #expect(flow.apple.requests == 2)
        }
    }

    @Test("A key that Apple has just published is fetched once; invented keys and forgeries cause no further fetch.")
    func newKey() async throws {
        try await FlowFixture.with { flow in
            // Before that, a request could cause the first fetch.
            try await eventually("the first key set") { !flow.keys.keys.isEmpty }
            _ = try await flow.signIn(flow.request(flow.apple.signIn()))
            #expect(flow.apple.fetches == 1)
            try flow.apple.behave("{\"rotate_keys\":true}")
            let device = try flow.apple.signIn(nonce: "nonce-two")
            _ = try await flow.signIn(flow.request(device, nonce: "nonce-two"))
            #expect(flow.apple.fetches == 2)

            let stranger = try SimulatedApple.generate()
            var forged = try flow.apple.signIn(nonce: "nonce-three")
            let claims = "{\"iss\":\"https://appleid.apple.com\"}"
            for kid in ["A", "B", "C", stranger.keyID] {
                let header = "{\"kid\":\"\(kid)\",\"alg\":\"RS256\"}"
                forged.token = try stranger.token(claims: claims, header: header)
                let refusal = try await flow.refusal(flow.request(forged, nonce: "nonce-three"))
                #expect(refusal == .keysUnavailable || refusal == .unknownKey)
            }
            let header = "{\"kid\":\"\(flow.apple.signer.keyID)\",\"alg\":\"RS256\"}"
            forged.token = try stranger.token(claims: claims, header: header)
            #expect(try await flow.refusal(flow.request(forged, nonce: "nonce-three")) == .badSignature)
            #expect(flow.apple.fetches == 2)
        }
    }

    @Test("A request waits three seconds for a key that is being fetched, and works when the key has come.")
    func slowKeySet() async throws {
        try await FlowFixture.with { flow in
            // Before that, a request could cause the first fetch.
            try await eventually("the first key set") { !flow.keys.keys.isEmpty }
            try flow.apple.behave("{\"rotate_keys\":true}")
            let request = try flow.request(flow.apple.signIn())
            let gate = WakeupEvent()
            flow.apple.holdKeySet(until: gate)
            let start = ContinuousClock.now
            #expect(await flow.refusal(request) == .keysUnavailable)
            #expect(.now - start >= .seconds(3))
            gate.signal()
            #expect(try await flow.signIn(request).refreshToken == .stored)
            #expect(flow.apple.fetches == 2)
        }
    }

    @Test("A token that does not pass its checks is refused without the database.")
    func checkedFirst() async throws {
        try await FlowFixture.with { flow in
            try await eventually("the first key set") { !flow.keys.keys.isEmpty }
            let device = try flow.apple.signIn()
            let forger = try SimulatedApple(key: .generate(), keyID: flow.apple.signer.keyID)
            var forged = device
            forged.token = try forger.token(claims: "{}")
            var injected = device
            injected.code = try flow.apple.signIn(person: "bob").code
            let old = try flow.apple.signIn(members: ",\"age\":700")
            await flow.pool.close()
            #expect(try await flow.refusal(flow.request(forged)) == .badSignature)
            #expect(try await flow.refusal(flow.request(device, client: "com.example.two")) == .wrongAudience)
            #expect(try await flow.refusal(flow.request(old)) == .tokenTooOld)
            #expect(try await flow.refusal(flow.request(device, nonce: "nonce-of-bob")) == .nonceMismatch)
            #expect(try await flow.refusal(flow.request(injected)) == .codeMismatch)
            // The next step needs it.
            #expect(try await flow.refusal(flow.request(device)) == .databaseUnavailable)
            #expect(flow.apple.requests == 0)
        }
    }

    @Test(
        "An answer of Apple's about another person or another access token stores nothing.",
        arguments: [("sub", true), ("at_hash", true), ("at_hash", false)]
    )
    func unexpected(tampered: String, isPresented: Bool) async throws {
        try await FlowFixture.with { flow in
            try flow.apple.behave("{\"tamper\":\"\(tampered)\"}")
            let request = try flow.request(flow.apple.signIn(), session: "s1", token: isPresented)
            #expect(await flow.refusal(request) == .appleUnexpected)
            for table in ["sign_ins", "apple_tokens", "accounts", "account_sessions"] {
                #expect(try await flow.texts("SELECT 1::text FROM siwa.\(table)").isEmpty, "\(table)")
            }
            #expect(flow.log.text.contains("does not fit the sign-in"))
        }
    }

    @Test("A token from before a revocation opens nothing, and its code stays unused.")
    func revoked() async throws {
        try await FlowFixture.with { flow in
            _ = try await flow.signIn(flow.request(flow.apple.signIn()))
            let device = try flow.apple.signIn(nonce: "nonce-two")
            try await flow.run("UPDATE siwa.consents SET revoked_at = now() + interval '1 s'")
            let request = try flow.request(device, nonce: "nonce-two", session: "s2")
            #expect(await flow.refusal(request) == .consentRevoked)
            try await flow.run("UPDATE siwa.accounts SET deleted_at = now()")
            #expect(await flow.refusal(request) == .accountDeleted)
            #expect(flow.apple.requests == 1)
            #expect(try await flow.texts("SELECT session_id FROM siwa.account_sessions").isEmpty)
        }
    }
}
