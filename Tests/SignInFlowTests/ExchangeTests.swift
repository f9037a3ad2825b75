import AccountStore
import AppleTokens
import Basics
import Ingest
import JOSE
import Postgres
import SignIn
import Telemetry
import Testing

@testable import SignInFlow

@Suite("Exchanging codes", .timeLimit(.minutes(5)))
struct ExchangeTests {
    /// Answers that say nothing about a code, as the simulated Apple gives them.
    private static let faults = [
        "{\"status\":500}", "{\"retry_after\":1}", "{\"delay_ms\":60000}", "{\"cut\":true}", "{\"status\":302}",
        "{\"body\":\"<html>\"}", "{\"status\":403,\"body\":\"no\"}", "{\"status\":200,\"body\":\"{}\"}",
        // One that is too long, and one in another charset than JSON has, would be refusals if they were read.
        #"{"status":400,"body":"{\"error\":\"invalid_grant\"}","size":1048576}"#,
        #"{"status":400,"body":"{\"error\":\"invalid_grant\"}","content_type":"application/json;charset=UTF-16"}"#,
    ]

    @Test(
        "In preferred mode, a fault of Apple's stops nobody, and the code is traded in the background.",
        arguments: faults
    )
    func preferred(fault: String) async throws {
        try await FlowFixture.with { flow in
            try flow.apple.behave(fault)
            let device = try flow.apple.signIn()
            let answer = try await flow.signIn(flow.request(device, session: "s1"))
            #expect(answer.refreshToken == .pending && answer.session?.isLive == true)
            let stored = try await flow.texts("SELECT convert_from(code_sealed, 'UTF8') FROM siwa.sign_ins")
            #expect(stored.count == 1 && !stored[0].contains(device.code))
            async let background: Void = flow.service.runExchanges()
            // An answer that got lost has used the code; so has one that took too long.
            let isUsed = fault.contains("cut") || fault.contains("delay")
            let outcome = isUsed ? "lost" : "stored"
            try await eventually("the code to be traded") {
                try await flow.texts("SELECT refresh FROM siwa.sign_ins") == [outcome]
            }
            flow.service.finishExchanges()
            await background
            #expect(try await flow.texts("SELECT code_sealed::text FROM siwa.sign_ins") == ["NULL"])
            #expect(try await flow.texts("SELECT state FROM siwa.apple_tokens") == (isUsed ? [] : ["valid"]))
        }
    }

    @Test("In required mode, a fault of Apple's is 503, and the same request works later.", arguments: faults)
    func required(fault: String) async throws {
        try await FlowFixture.with(FlowFixture.Rules(exchange: .required)) { flow in
            try flow.apple.behave(fault)
            let request = try flow.request(flow.apple.signIn(), session: "s1")
            #expect(await flow.refusal(request) == .appleUnavailable)
            #expect(try await flow.texts("SELECT 1::text FROM siwa.sign_ins").isEmpty)
            let isUsed = fault.contains("cut") || fault.contains("delay")
            #expect(await flow.refusal(request) == (isUsed ? .codeRejected : nil))
        }
    }

    @Test("With a code alone, Apple must issue tokens in preferred mode too, in the time of the required mode.")
    func codeOnly() async throws {
        try await FlowFixture.with { flow in
            let request = try flow.request(flow.apple.signIn(), session: "s1", token: false)
            func expectRefusal(_ reason: Problem.Reason) async throws {
                #expect(await flow.refusal(request) == reason)
                #expect(try await flow.texts("SELECT 1::text FROM siwa.sign_ins").isEmpty, "\(reason)")
            }
            try flow.apple.behave(#"{"status":500}"#)
            try await expectRefusal(.appleUnavailable)
            try flow.apple.behave(#"{"status":400,"body":"{\"error\":\"invalid_grant\"}"}"#)
            try await expectRefusal(.codeRejected)
            flow.apple.refuse(keys: ["KEYONE0001", "KEYTWO0002"])
            try await expectRefusal(.appleRefusedClient)
            flow.apple.refuse(keys: [])
            // With a token, preferred mode waits three seconds at most.
            try flow.apple.behave(#"{"delay_ms":4000}"#)
            #expect(try await flow.signIn(request).refreshToken == .stored)
        }
    }

    @Test("A code that was used before is no obstacle in preferred mode, and refused in required mode.")
    func usedCode() async throws {
        try await FlowFixture.with { flow in
            try flow.apple.behave("{\"repeat_code\":true}")
            _ = try await flow.signIn(flow.request(flow.apple.signIn()))
            let second = try flow.apple.signIn(nonce: "nonce-two")
            let answer = try await flow.signIn(flow.request(second, nonce: "nonce-two"))
            #expect(answer.refreshToken == .kept)
            try flow.replace(FlowFixture.Rules(exchange: .required))
            let third = try flow.apple.signIn(nonce: "nonce-three")
            #expect(try await flow.refusal(flow.request(third, nonce: "nonce-three")) == .codeRejected)
        }
    }

    @Test("In required mode, a code counts as lost in a later request if Apple's key for its answer can't be fetched.")
    func unverifiedAnswer() async throws {
        try await FlowFixture.with(FlowFixture.Rules(exchange: .required)) { flow in
            try await eventually("the first key set") { !flow.keys.keys.isEmpty }
            // With neither session nor key, a sign-in that is under way can't be repeated.
            let request = try flow.request(flow.apple.signIn())
            try flow.apple.behave("{\"rotate_keys\":true}")
            flow.apple.breakKeySet()
            #expect(await flow.refusal(request) == .keysUnavailable)
            // In required mode, Apple's refusal of the used code would be the answer.
            try flow.replace(FlowFixture.Rules())
            #expect(try await flow.signIn(request).refreshToken == .lost)
        }
    }

    @Test("One exchange for which Apple needs long delays no other, however many codes wait.")
    func slowExchange() async throws {
        try await FlowFixture.with { flow in
            let codes = 80
            try flow.apple.behave("{\"status\":500,\"times\":\(codes)}")
            for number in 0..<codes {
                let nonce = "nonce-of-\(number)"
                let device = try flow.apple.signIn(person: "person\(number)", nonce: nonce)
                #expect(try await flow.signIn(flow.request(device, nonce: nonce)).refreshToken == .pending)
            }
            let gate = WakeupEvent()
            flow.apple.whileAsked { await gate.wait(atMost: .seconds(60)) }
            async let background: Void = flow.service.runExchanges()
            let stored = "SELECT count(*)::text FROM siwa.sign_ins WHERE refresh = 'stored'"
            try await eventually("the other codes to be traded") {
                try await flow.texts(stored) == ["\(codes - 1)"]
            }
            gate.signal()
            try await eventually("the last code to be traded") { try await flow.texts(stored) == ["\(codes)"] }
            flow.service.finishExchanges()
            await background
        }
    }

    @Test("If the refresh tokens can't be counted, the codes are traded all the same.")
    func uncounted() async throws {
        try await FlowFixture.with { flow in
            try flow.apple.behave("{\"status\":500,\"times\":1}")
            let device = try flow.apple.signIn()
            #expect(try await flow.signIn(flow.request(device)).refreshToken == .pending)
            try await flow.run("ALTER VIEW siwa.refresh_tokens RENAME TO no_refresh_tokens")
            async let background: Void = flow.service.runExchanges()
            try await eventually("the code to be traded") {
                try await flow.texts("SELECT refresh FROM siwa.sign_ins") == ["stored"]
            }
            try await eventually("the report") { flow.log.count("the refresh tokens can't be counted") == 1 }
            #expect(flow.log.count("codes that wait to be traded can't be read") == 0)
            flow.service.finishExchanges()
            await background
        }
    }

    @Test("The metric has the number of refresh tokens in each state.")
    func tokenCounts() async throws {
        try await FlowFixture.with { flow in
            for person in ["ada", "bob", "eve"] {
                let device = try flow.apple.signIn(person: person, nonce: "nonce-of-\(person)")
                _ = try await flow.signIn(flow.request(device, nonce: "nonce-of-\(person)"))
            }
            let one = "(SELECT min(account_id) FROM siwa.apple_tokens)"
            try await flow.run("UPDATE siwa.apple_tokens SET state = 'unreadable' WHERE account_id = \(one)")
            async let background: Void = flow.service.runExchanges()
            try await eventually("the counts") {
                let lines = Set(flow.metrics.registry.prometheusText().split(separator: "\n").map(String.init))
                return lines.isSuperset(of: [
                    "siwad_apple_tokens{state=\"valid\"} 2", "siwad_apple_tokens{state=\"refused\"} 0",
                    "siwad_apple_tokens{state=\"unreadable\"} 1",
                ])
            }
            flow.service.finishExchanges()
            await background
        }
    }

    @Test("No transaction is open while Apple is asked, neither in a sign-in nor in the background.")
    func noOpenTransaction() async throws {
        try await FlowFixture.with { flow in
            let openTransactions = """
                SELECT pid::text FROM pg_stat_activity
                WHERE datname = current_database() AND state LIKE 'idle in transaction%'
                """
            let check: @Sendable () async throws -> Void = {
                // A transaction that only looks for codes to trade ends without Apple's answer.
                try await eventually("the end of the transaction", within: .seconds(5)) {
                    try await flow.texts(openTransactions).isEmpty
                }
            }
            for token in [true, false] {
                let nonce = "nonce-of-\(token)"
                let request = try flow.request(flow.apple.signIn(nonce: nonce), nonce: nonce, token: token)
                flow.apple.whileAsked(check)
                #expect(try await flow.signIn(request).refreshToken == .stored)
            }
            try flow.apple.behave(#"{"status":500}"#)
            let device = try flow.apple.signIn()
            #expect(try await flow.signIn(flow.request(device)).refreshToken == .pending)
            flow.apple.whileAsked(check)
            async let background: Void = flow.service.runExchanges()
            try await eventually("the code to be traded") {
                try await flow.texts("SELECT refresh FROM siwa.sign_ins") == ["stored", "stored", "stored"]
            }
            flow.service.finishExchanges()
            await background
            #expect(flow.apple.requests == 4)
        }
    }

    @Test("A code that Apple accepts no longer is given up and erased.")
    func givenUp() async throws {
        try await FlowFixture.with { flow in
            try flow.apple.behave("{\"status\":500,\"times\":1000}")
            let device = try flow.apple.signIn(members: ",\"age\":297")
            let answer = try await flow.signIn(flow.request(device))
            #expect(answer.refreshToken == .pending)
            async let background: Void = flow.service.runExchanges()
            try await eventually("the code to be given up") {
                try await flow.texts("SELECT refresh FROM siwa.sign_ins WHERE code_sealed IS NULL") == ["lost"]
            }
            flow.service.finishExchanges()
            await background
            let old = try flow.apple.signIn(nonce: "nonce-two", members: ",\"age\":400")
            #expect(try await flow.signIn(flow.request(old, nonce: "nonce-two")).refreshToken == .lost)
        }
    }

    @Test("The pauses between attempts grow, follow Apple's wish, and end with the life of the code.")
    func schedule() {
        let issued = WallTime(seconds: 1_000)
        func pause(_ attempts: Int, _ retryAfter: Int? = nil, at second: Int64 = 1_000) -> Duration? {
            let now = WallTime(seconds: second)
            return ExchangeSchedule.next(after: attempts, issuedAt: issued, retryAfter: retryAfter, now: now)?
                .duration(since: now)
        }
        #expect((0...8).map { pause($0) } == [1, 2, 5, 10, 30, 60, 120, 120, 120].map { .seconds($0) })
        #expect(pause(0, 20) == .seconds(20) && pause(3, 1) == .seconds(10))
        #expect(pause(0, at: 1_298) == .seconds(1) && pause(0, at: 1_299) == nil)
        // Apple's wish leaves time for one attempt, unless the usual pause is too long.
        #expect([290, 291, 300, 400, Int.max].map { pause(2, $0) } == Array(repeating: .seconds(290), count: 5))
        #expect(pause(3, 400, at: 1_285) == .seconds(10) && pause(6, 400, at: 1_200) == nil)
        #expect(pause(1, 400, at: 1_290) == nil && pause(1, 1, at: 1_290) == .seconds(2))
    }

    @Test("Where Apple asks for a pause longer than the code's life, the code is traded shortly before its end.")
    func longPause() async throws {
        try await FlowFixture.with { flow in
            try flow.apple.behave("{\"retry_after\":400}")
            #expect(try await flow.signIn(flow.request(flow.apple.signIn())).refreshToken == .pending)
            let isLate = "SELECT (code_due_at = signed_in_at + interval '290 s')::text FROM siwa.sign_ins"
            #expect(try await flow.texts(isLate) == ["true"])
            try await flow.run("UPDATE siwa.sign_ins SET code_due_at = now()")
            async let background: Void = flow.service.runExchanges()
            try await eventually("the code to be traded") {
                try await flow.texts("SELECT refresh FROM siwa.sign_ins") == ["stored"]
            }
            flow.service.finishExchanges()
            await background
        }
    }

    @Test("A sign-in is tried to be settled at least once, and again only until its time is over.")
    func settlementTime() async throws {
        try await FlowFixture.with { flow in
            // A sequence counts attempts that are rolled back, too.
            try await flow.run(
                """
                CREATE SEQUENCE public.attempts;
                CREATE FUNCTION public.interfere() RETURNS trigger LANGUAGE plpgsql AS $$
                BEGIN
                    PERFORM nextval('public.attempts');
                    RAISE EXCEPTION 'another writer interfered' USING ERRCODE = '40001';
                END $$;
                CREATE TRIGGER interfere BEFORE UPDATE ON siwa.sign_ins
                    FOR EACH ROW EXECUTE FUNCTION public.interfere()
                """
            )
            let database = flow.service.database
            let new = NewSignIn(
                presentedDigest: SHA256.digest(Array("token".utf8).span),
                nonceDigest: SHA256.digest(Array("nonce".utf8).span),
                codeDigest: SHA256.digest(Array("code".utf8).span),
                client: ClientID("com.example.one"),
                caller: "",
                kind: .native,
                subject: Subject("p"),
                issuedAt: WallTime.now()
            )
            guard case .reserved(let signInID) = try await database.reserve(new, settling: nil) else {
                Issue.record("not reserved")
                return
            }
            // One that is not written together with others.
            let settlement = Settlement(
                signInID: signInID,
                subject: Subject("p"),
                signedInAt: WallTime.now(),
                refresh: .refused("invalid_client")
            )
            func attempts() async throws -> Int {
                let sql = "SELECT (CASE WHEN is_called THEN last_value ELSE 0 END)::text FROM public.attempts"
                return Int(try await flow.texts(sql)[0]) ?? 0
            }
            await #expect(throws: Problem.self) { try await database.settle(settlement, nil, until: .now) }
            #expect(try await attempts() == 1)
            let end = ContinuousClock.now + .seconds(1)
            await #expect(throws: Problem.self) { try await database.settle(settlement, nil, until: end) }
            #expect(try await attempts() > 2)
            try await flow.run("DROP TRIGGER interfere ON siwa.sign_ins")
            #expect(try await database.settle(settlement, nil, until: .now).signInID == signInID)
        }
    }

    @Test("A server that is read only, as a primary is that becomes a standby, is tried again.")
    func readOnly() async throws {
        try await FlowFixture.with { flow in
            // A sequence counts attempts that are rolled back, too.
            try await flow.run(
                """
                CREATE SEQUENCE public.attempts;
                CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS $$
                BEGIN
                    IF nextval('public.attempts') <= 3 THEN
                        RAISE EXCEPTION 'cannot execute UPDATE in a read-only transaction' USING ERRCODE = '25006';
                    END IF;
                    RETURN new;
                END $$;
                CREATE TRIGGER refuse BEFORE UPDATE ON siwa.sign_ins FOR EACH ROW EXECUTE FUNCTION public.refuse()
                """
            )
            #expect(try await flow.signIn(flow.request(flow.apple.signIn())).refreshToken == .stored)
        }
    }

    @Test(
        "A refresh token that comes in the background is stored after an outage of the database of more than 5 seconds."
    )
    func lateStorage() async throws {
        try await FlowFixture.with { flow in
            try flow.apple.behave(#"{"status":500}"#)
            #expect(try await flow.signIn(flow.request(flow.apple.signIn())).refreshToken == .pending)
            try await flow.run(
                """
                CREATE TABLE public.outage (ends_at timestamptz);
                CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS $$
                BEGIN
                    IF clock_timestamp() < (SELECT o.ends_at FROM public.outage AS o) THEN
                        RAISE EXCEPTION 'the server starts' USING ERRCODE = '57P03';
                    END IF;
                    RETURN new;
                END $$;
                CREATE TRIGGER refuse BEFORE INSERT ON siwa.apple_tokens FOR EACH ROW EXECUTE FUNCTION public.refuse();
                INSERT INTO public.outage VALUES (clock_timestamp() + interval '8 s')
                """
            )
            async let background: Void = flow.service.runExchanges()
            try await eventually("the token", within: .seconds(40)) {
                try await flow.texts("SELECT refresh::text FROM siwa.sign_ins") == ["stored"]
            }
            flow.service.finishExchanges()
            await background
        }
    }

    @Test("While PostgreSQL is away, the answer is 503 and the code stays unused.")
    func noDatabase() async throws {
        try await FlowFixture.with { flow in
            let device = try flow.apple.signIn()
            await flow.pool.close()
            #expect(try await flow.refusal(flow.request(device)) == .databaseUnavailable)
            #expect(flow.apple.requests == 0)
        }
    }

    @Test("A client secret is used again until a minute before its end, but not before its beginning.")
    func cachedSecret() async throws {
        let key = ClientSecrets.Key(id: "KEYONE0001", key: try .generate())
        let audiences = try AudienceMap(parsing: "AAAAAAAAAA/com.example.one")
        let group = audiences.groups[0]
        let secrets = ClientSecrets(keys: [group.app: [key]], lifetime: .seconds(300))
        let start = WallTime(seconds: 2_000_000_000)
        func secret(after seconds: Int) throws -> String {
            let client = ClientID("com.example.one")
            return try secrets.secret(for: client, of: group, keyID: key.id, now: start + .seconds(seconds))
        }
        let first = try secret(after: 0)
        #expect(try secret(after: 239) == first)
        let second = try secret(after: 240)
        #expect(second != first)
        #expect(try secret(after: 400) == second)
        #expect(try secret(after: 100) != second)
    }
}
