import AppleSimulator
import Basics
import JOSE
import Postgres
import StoreTestSupport
import TestSupport
import Testing

@Suite("Signing in with a slow clock or a locked table", .timeLimit(.minutes(10)))
struct SignInDelayTests {
    @Test("With a clock 150 seconds behind Apple's, a session of a minute opens, and ends a minute from now.")
    func slowClock() async throws {
        try await SigningFixture.with { fixture in
            _ = try await fixture.ready("a")
            try await fixture.control("advance", #"{"seconds":150}"#)
            let request = try await fixture.device().request(session: "s1")
                .replacing(#"{"id":"s1"}"#, with: #"{"id":"s1","expires_in":60}"#)
            let before = WallTime.now()
            let answer = try await fixture.post(request, to: "a")
            #expect(answer.status == 200 && answer.member("refresh_token")?.string == "stored", "\(answer.body)")
            let session = try #require(answer.member("session"), "\(answer.body)")
            func time(_ name: String) -> WallTime? { session[name]?.string.flatMap { WallTime(iso8601: $0) } }
            let (created, expires) = (try #require(time("created_at")), try #require(time("expires_at")))
            #expect(session["live"] == .boolean(true) && created < expires)
            #expect(expires >= before + .seconds(60) && expires <= WallTime.now() + .seconds(60))
            let signedIn = answer.member("signed_in_at")?.string.flatMap { WallTime(iso8601: $0) }
            #expect(signedIn.map { $0 > before + .seconds(140) } == true)
            #expect(try await fixture.daemons.texts("SELECT session_id FROM siwa.live_sessions") == ["s1"])
            let repeated = try await fixture.post(request, to: "a")
            #expect(repeated.status == 200 && repeated.member("repeated") == .boolean(true), "\(repeated.body)")
        }
    }

    @Test("A sign-in whose person is locked for longer than one statement may take is settled by the next statement.")
    func lockedAccounts() async throws {
        try await SigningFixture.with { fixture in
            // Others of its statements wait for the lock, too.
            _ = try await fixture.ready("a", ["SIWAD_DATABASE_CONNECTIONS": "8"])
            let request = try await fixture.device().request(session: "s1")
            try await fixture.control("behave", #"{"delay_ms":1500}"#)
            let other = try await DaemonFixture.connect(fixture.daemons.conninfo)
            try await fixture.daemons.run("SELECT pg_advisory_lock(4711)")
            async let answering = fixture.post(request, to: "a")
            try await eventually("Apple to be asked") { try await fixture.tokenRequests() == 1 }
            async let holder: Void = other.transaction { session throws(PostgresError) in
                try session.execute(script: "LOCK TABLE siwa.accounts IN ACCESS EXCLUSIVE MODE")
                try session.execute(script: "SELECT pg_advisory_xact_lock(4711)")
            }
            try await fixture.daemons.untilStalled()

            let statements = """
                SELECT query_start::text FROM pg_stat_activity
                WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE '%siwa.settle_sign_in(%'
                """
            var first: String?
            try await eventually("a statement that waits for the lock") {
                first = try await fixture.daemons.texts(statements).first
                return first != nil
            }
            try await eventually("the statement after it") {
                let waiting = try await fixture.daemons.texts(statements)
                return waiting.first.map { $0 != first } ?? false
            }
            try await fixture.daemons.letCommit()
            try await holder
            await other.close()
            let answer = try await answering
            #expect(answer.status == 200 && answer.member("refresh_token")?.string == "stored", "\(answer.body)")
            #expect(answer.member("session")?["live"] == .boolean(true))
            #expect(try await fixture.daemons.texts("SELECT state FROM siwa.apple_tokens") == ["valid"])
            #expect(try await fixture.tokenRequests() == 1)
        }
    }
}
