import AppleSimulator
import Basics
import Foundation
import JOSE
import Postgres
import StoreTestSupport
import TestSupport
import Testing

@Suite("Signing in during faults", .timeLimit(.minutes(10)))
struct SignInFaultTests {
    /// Where a sign-in is when the daemon is killed.
    enum Point: CaseIterable {
        /// It waits for Apple's keys.
        case checks
        /// It waits for the database to reserve it.
        case reservation
        /// Apple has not looked at the code.
        case exchange
        /// Apple has used the code, and its answer is on the way.
        case answer
        /// The database is writing its settlement, and undoes it.
        case writing
        /// It waits for the database to settle it.
        case settlement
        /// It is settled, and the caller has no answer.
        case response
    }

    @Test(
        "Killed at any point, a sign-in leaves no session without a sign-in, and works when it is repeated, for one session.",
        arguments: Point.allCases,
        ["s1", "s2"]
    )
    func killed(point: Point, session: String) async throws {
        try await SigningFixture.with { fixture in
            // With the session s1.
            let device = try await kill(at: point, fixture)
            _ = try await fixture.ready("a")
            let isSettled = point == .settlement || point == .response
            let isOther = session != "s1"
            let answer = try await fixture.post(device.request(session: session), to: "a")
            if isSettled, isOther {
                #expect(answer.status == 422 && answer.reason == "token-used", "\(point): \(answer.body)")
                #expect(try await settled(fixture) == ["s1"])
            } else {
                #expect(answer.status == 200, "\(point): \(answer.body)")
                let isUsed = point == .answer || point == .writing
                let refreshToken = answer.member("refresh_token")?.string
                #expect(refreshToken == (isUsed ? "lost" : "stored"), "\(point): \(answer.body)")
                #expect(answer.member("session")?["live"] == .boolean(true))
                #expect(try await settled(fixture) == [session])
                let second = try await fixture.post(device.request(session: isOther ? "s1" : "s2"), to: "a")
                #expect(second.status == 422 && second.reason == "token-used", "\(point): \(second.body)")
                #expect(try await settled(fixture) == [session])
            }
            try await expectWhole(fixture)
        }
    }

    @Test(
        "Where Apple must answer, a sign-in that is killed after its code was used leaves nothing, and needs another code.",
        arguments: [Point.answer, .writing]
    )
    func killedWithUsedCode(point: Point) async throws {
        try await SigningFixture.with { fixture in
            let device = try await kill(at: point, fixture, Self.onlyWithApple)
            _ = try await fixture.ready("a", Self.onlyWithApple)
            let refused = try await fixture.post(device.request(session: "s1"), to: "a")
            #expect(refused.status == 422 && refused.reason == "code-rejected", "\(point): \(refused.body)")
            for table in ["accounts", "account_sessions", "sign_ins", "apple_tokens"] {
                let rows = try await fixture.daemons.texts("SELECT 1::text FROM siwa.\(table)")
                #expect(rows == [], "\(point): \(table)")
            }
            let again = try await fixture.post(fixture.device().request(session: "s1"), to: "a")
            #expect(again.status == 200 && again.member("refresh_token")?.string == "stored", "\(again.body)")
            try await expectWhole(fixture)
        }
    }

    /// Kills a daemon at a point of a sign-in with the session `s1`, and ends its lease.
    ///
    /// - Returns: what the request was made of.
    private func kill(
        at point: Point,
        _ fixture: SigningFixture,
        _ settings: [String: String] = [:]
    ) async throws -> SigningFixture.Device {
        let daemon = try await fixture.ready("a", settings)
        try await prepare(point, fixture)
        let fetches = fixture.daemons.endpoint.fetches
        let device = try await fixture.device()
        let request = device.request(session: "s1")
        async let lost = try? fixture.post(request, to: "a")
        try await wait(for: point, since: fetches, fixture)
        // Nor does it answer before it is killed.
        try await daemon.stop()
        try await expectReached(point, fixture)
        if point == .response {
            // The commit reaches a daemon that does nothing more.
            try await fixture.daemons.letCommit()
            try await eventually("the commit") { try await settled(fixture) == ["s1"] }
        }
        await daemon.kill()
        let answerBefore = await lost
        #expect(answerBefore == nil, "\(point): the caller has an answer, so the daemon was killed too late")
        try await release(point, fixture)
        try await expectWhole(fixture)
        try await fixture.daemons.run("UPDATE siwa.sign_ins SET lease_until = now() WHERE settled_at IS NULL")
        return device
    }

    private func prepare(_ point: Point, _ fixture: SigningFixture) async throws {
        switch point {
        case .checks:
            // The daemon has the keys of before, so only the request makes it fetch them again.
            try await fixture.control("behave", #"{"rotate_keys":true}"#)
            fixture.daemons.endpoint.now(.silence)
        case .reservation:
            try await stallRows(of: "siwa.sign_ins", fixture)
        case .exchange: try await fixture.control("behave", #"{"status":500,"delay_ms":60000}"#)
        case .answer: try await fixture.control("behave", #"{"delay_ms":60000}"#)
        case .writing: try await stallRows(of: "siwa.accounts", fixture)
        case .settlement, .response: try await fixture.daemons.stallCommits()
        }
    }

    /// Stalls every statement that adds a row to a table, until ``DaemonFixture/letCommit()``.
    private func stallRows(of table: String, _ fixture: SigningFixture) async throws {
        try await fixture.daemons.run(
            """
            CREATE FUNCTION public.stall_row() RETURNS trigger LANGUAGE plpgsql AS $$
            BEGIN PERFORM pg_advisory_xact_lock_shared(4711); RETURN NEW; END $$;
            CREATE TRIGGER stall BEFORE INSERT ON \(table) FOR EACH ROW EXECUTE FUNCTION public.stall_row();
            SELECT pg_advisory_lock(4711);
            """
        )
    }

    /// - Parameter fetches: the number of fetches of the keys before the request.
    private func wait(for point: Point, since fetches: Int, _ fixture: SigningFixture) async throws {
        switch point {
        case .checks: try await eventually("a fetch of the keys") { fixture.daemons.endpoint.fetches > fetches }
        case .exchange, .answer:
            try await eventually("Apple to be asked") { try await fixture.tokenRequests() == 1 }
        case .reservation, .writing, .settlement, .response: try await fixture.daemons.untilStalled()
        }
    }

    /// What the request has left in the database and at Apple shows that it has not passed the point.
    private func expectReached(_ point: Point, _ fixture: SigningFixture) async throws {
        let expected: [String]
        switch point {
        case .checks, .reservation: expected = []
        case .exchange, .answer, .writing, .settlement, .response: expected = ["unsettled"]
        }
        let rows = try await fixture.daemons.texts(
            "SELECT CASE WHEN settled_at IS NULL THEN 'unsettled' ELSE 'settled' END FROM siwa.sign_ins"
        )
        #expect(rows == expected, "\(point)")
        // Apple is asked right after the reservation.
        #expect(try await fixture.tokenRequests() == expected.count, "\(point)")
    }

    private func release(_ point: Point, _ fixture: SigningFixture) async throws {
        switch point {
        case .checks:
            let keySet = try await Web.get("\(fixture.apple)/auth/keys").body
            fixture.daemons.endpoint.now(.keySet(keySet))
        case .reservation:
            // PostgreSQL finishes the statement of a client that is gone, and learns only then that no COMMIT follows.
            try await fixture.daemons.letCommit()
            try await untilEnded("siwa.sign_ins", fixture)
        case .writing:
            // PostgreSQL would finish the statement of a client that is gone.
            try await fixture.daemons.endOtherConnections()
            try await untilEnded("siwa.", fixture)
            try await fixture.daemons.letCommit()
            #expect(try await settled(fixture) == [])
        case .exchange, .answer, .response: break
        case .settlement:
            // PostgreSQL finishes the commit of a client that is gone.
            try await fixture.daemons.letCommit()
            try await eventually("the commit") { try await settled(fixture) == ["s1"] }
        }
    }

    /// Waits until no other connection is left whose last statement has this text.
    private func untilEnded(_ text: String, _ fixture: SigningFixture) async throws {
        try await eventually("the end of the transaction") {
            try await fixture.daemons.texts(
                """
                SELECT query FROM pg_stat_activity
                WHERE datname = current_database() AND pid <> pg_backend_pid() AND query LIKE '%\(text)%'
                """
            ).isEmpty
        }
    }

    private func settled(_ fixture: SigningFixture) async throws -> [String] {
        try await fixture.daemons.texts("SELECT session_id FROM siwa.sign_ins WHERE settled_at IS NOT NULL")
    }

    /// Every session has its sign-in, and at most one is there.
    private func expectWhole(_ fixture: SigningFixture) async throws {
        let sessions = try await fixture.daemons.texts("SELECT session_id FROM siwa.account_sessions")
        let signIns = try await settled(fixture)
        #expect(sessions == signIns && sessions.count <= 1)
    }

    @Test(
        "Whatever Apple's token endpoint does, a person is signed in within four seconds, and the code is traded later."
    )
    func faultyApple() async throws {
        try await SigningFixture.with { fixture in
            _ = try await fixture.ready("a")
            let faults = [
                "{\"status\":500}", "{\"retry_after\":1}", "{\"status\":302}", "{\"body\":\"<html>\"}",
                "{\"status\":403,\"body\":\"no\"}",
                // It would be a refusal if it were read to its end.
                #"{"status":400,"body":"{\"error\":\"invalid_grant\"}","size":1048576}"#,
                "{\"cut\":true}", "{\"delay_ms\":8000}",
            ]
            // A code that is traded in the background would use up the fault of a later one.
            try await fixture.daemons.run(
                """
                CREATE FUNCTION public.postpone() RETURNS trigger LANGUAGE plpgsql AS $$
                BEGIN NEW.code_due_at := NEW.code_due_at + interval '1 h'; RETURN NEW; END $$;
                CREATE TRIGGER postpone BEFORE UPDATE ON siwa.sign_ins
                    FOR EACH ROW WHEN (OLD.code_due_at IS NULL) EXECUTE FUNCTION public.postpone();
                """
            )
            for (number, fault) in faults.enumerated() {
                try await fixture.control("behave", fault)
                let start = ContinuousClock.now
                let request = try await fixture.device("person\(number)").request(session: "s\(number)")
                let answer = try await fixture.post(request, to: "a")
                // After a connection that broke, the code is tried once more.
                let outcome = fault.contains("cut") ? "lost" : "pending"
                #expect(answer.status == 200 && answer.member("refresh_token")?.string == outcome, "\(answer.body)")
                #expect(.now - start < .seconds(4), "\(fault)")
            }
            try await fixture.daemons.run(
                "DROP TRIGGER postpone ON siwa.sign_ins; UPDATE siwa.sign_ins SET code_due_at = now() WHERE refresh = 'pending'"
            )
            // Apple has used the codes of the two whose answer got lost.
            try await eventually("the codes to be traded") {
                try await fixture.daemons.texts("SELECT refresh FROM siwa.sign_ins ORDER BY sign_in_id")
                    == ["stored", "stored", "stored", "stored", "stored", "stored", "lost", "lost"]
            }
            #expect(try await fixture.daemons.texts("SELECT state FROM siwa.apple_tokens").count == 6)
        }
    }

    @Test("A code that Apple has not looked at is sent again if the connection broke, and traded later if Apple hangs.")
    func unusedCode() async throws {
        try await SigningFixture.with { fixture in
            _ = try await fixture.ready("a")
            try await fixture.control("behave", #"{"drop":true}"#)
            let broken = try await fixture.post(fixture.device().request(session: "s1"), to: "a")
            #expect(broken.status == 200 && broken.member("refresh_token")?.string == "stored", "\(broken.body)")
            #expect(try await fixture.tokenRequests() == 2)
            try await fixture.control("behave", #"{"status":500,"delay_ms":8000}"#)
            let hanging = try await fixture.post(fixture.device("bob").request(session: "s2"), to: "a")
            #expect(hanging.status == 200 && hanging.member("refresh_token")?.string == "pending", "\(hanging.body)")
            try await eventually("the code to be traded") {
                try await fixture.daemons.texts("SELECT refresh FROM siwa.sign_ins ORDER BY sign_in_id")
                    == ["stored", "stored"]
            }
            #expect(try await fixture.daemons.texts("SELECT state FROM siwa.apple_tokens") == ["valid", "valid"])
            #expect(try await fixture.tokenRequests() == 4)
        }
    }

    @Test("While PostgreSQL is away, a sign-in is answered 503 before its code is used, and works afterwards.")
    func noDatabase() async throws {
        try await SigningFixture.with { fixture in
            _ = try await fixture.ready("a")
            let request = try await fixture.device().request(session: "s1")
            try await fixture.daemons.closeDatabase()
            let refused = try await fixture.post(request, to: "a")
            #expect(refused.status == 503 && refused.reason == "database-unavailable" && refused.retryAfter != nil)
            #expect(try await fixture.tokenRequests() == 0)
            try await fixture.daemons.openDatabase()
            let answer = try await fixture.post(request, to: "a")
            #expect(answer.status == 200 && answer.member("refresh_token")?.string == "stored", "\(answer.body)")
        }
    }

    @Test(
        "A token and a nonce are used once, also at another daemon and after a restart; a repeated request gets its answer."
    )
    func severalDaemons() async throws {
        try await SigningFixture.with { fixture in
            let first = try await fixture.ready("a")
            _ = try await fixture.ready("b")
            let device = try await fixture.device()
            let request = device.request(session: "s1")
            async let one = fixture.post(request, to: "a")
            async let other = fixture.post(request, to: "b")
            let answers = try await [one, other]
            #expect(answers.allSatisfy { $0.status == 200 }, "\(answers.map(\.body))")
            #expect(answers[0].member("sign_in_id") == answers[1].member("sign_in_id"))
            #expect(answers.count { $0.member("repeated") == .boolean(true) } == 1)
            #expect(try await fixture.tokenRequests() == 1)
            first.send("TERM")
            #expect(try await first.end() == 0)
            _ = try await fixture.ready("a")
            let second = try await fixture.device()
            let reused = SigningFixture.Device(token: second.token, code: second.code, nonce: device.nonce)
            for name in ["a", "b"] {
                #expect(try await fixture.post(request, to: name).member("repeated") == .boolean(true))
                let replayed = try await fixture.post(device.request(session: "s2"), to: name)
                #expect(replayed.status == 422 && replayed.reason == "token-used", "\(replayed.body)")
            }
            #expect(try await fixture.post(reused.request(session: "s3"), to: "b").reason == "nonce-mismatch")
            let twin = try await fixture.device(nonce: device.nonce)
            #expect(try await fixture.post(twin.request(session: "s3"), to: "b").reason == "nonce-used")
            #expect(try await fixture.post(second.request(session: "s3"), to: "b").status == 200)
            #expect(try await fixture.tokenRequests() == 2)
        }
    }

    // MARK: - With Apple's answer required

    private static let onlyWithApple = ["SIWAD_CODE_EXCHANGE": "required"]

    @Test(
        "Where Apple must answer, a sign-in without an answer is 503, and works at another daemon unless its code was used."
    )
    func answerRequired() async throws {
        try await SigningFixture.with { fixture in
            for name in ["a", "b"] { _ = try await fixture.ready(name, Self.onlyWithApple) }
            func expectUnavailable(_ request: String, _ fault: String, retryAfter: Int) async throws {
                try await fixture.control("behave", fault)
                let start = ContinuousClock.now
                let refused = try await fixture.post(request, to: "a")
                #expect(ContinuousClock.now - start < .seconds(8), "\(fault)")
                #expect(refused.status == 503 && refused.reason == "apple-unavailable", "\(fault): \(refused.body)")
                #expect(refused.retryAfter == retryAfter, "\(fault)")
            }
            // Apple does not look at the code.
            let faults = [
                (#"{"status":500}"#, 1), (#"{"retry_after":3}"#, 3), (#"{"status":302}"#, 1),
                (#"{"body":"<html>"}"#, 1),
                // Would be a refusal if it were read to its end.
                (#"{"status":400,"body":"{\"error\":\"invalid_grant\"}","size":1048576}"#, 1),
            ]
            for (number, (fault, retryAfter)) in faults.enumerated() {
                let request = try await fixture.device("person\(number)").request(session: "s\(number)")
                try await expectUnavailable(request, fault, retryAfter: retryAfter)
                let answer = try await fixture.post(request, to: "b")
                #expect(answer.status == 200 && answer.member("refresh_token")?.string == "stored", "\(answer.body)")
                #expect(answer.member("repeated") == .boolean(false))
            }
            // Apple uses the code, and answers too late.
            let request = try await fixture.device("late").request(session: "late")
            try await expectUnavailable(request, #"{"delay_ms":60000}"#, retryAfter: 1)
            for name in ["b", "a"] {
                let refused = try await fixture.post(request, to: name)
                #expect(refused.status == 422 && refused.reason == "code-rejected", "\(refused.body)")
            }
            // Apple uses the code, its answer is cut, and the second attempt is refused.
            try await fixture.control("behave", #"{"cut":true}"#)
            let cut = try await fixture.post(fixture.device("cut").request(session: "cut"), to: "a")
            #expect(cut.status == 422 && cut.reason == "code-rejected", "\(cut.body)")
            #expect(try await settled(fixture).sorted() == ["s0", "s1", "s2", "s3", "s4"])
            #expect(try await fixture.daemons.texts("SELECT sub FROM siwa.accounts").count == 5)
        }
    }

    @Test("While a sign-in waits for Apple, the same request at another daemon is answered 409 after three seconds.")
    func waitsForApple() async throws {
        try await SigningFixture.with { fixture in
            for name in ["a", "b"] { _ = try await fixture.ready(name, Self.onlyWithApple) }
            let request = try await fixture.device().request(session: "s1")
            try await fixture.control("behave", #"{"delay_ms":5000}"#)
            async let first = fixture.post(request, to: "a")
            try await eventually("Apple to be asked") { try await fixture.tokenRequests() == 1 }
            let second = try await fixture.post(request, to: "b")
            #expect(second.status == 409 && second.reason == "in-progress", "\(second.body)")
            let answer = try await first
            #expect(answer.status == 200 && answer.member("refresh_token")?.string == "stored", "\(answer.body)")
            let again = try await fixture.post(request, to: "b")
            #expect(again.status == 200 && again.member("repeated") == .boolean(true), "\(again.body)")
            #expect(try await fixture.tokenRequests() == 1)
        }
    }
}
