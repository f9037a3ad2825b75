import Basics
import Postgres
import SignIn
import TestSupport
import Testing

@testable import SignInFlow

@Suite("Sign-ins at the same time", .timeLimit(.minutes(5)))
struct BatchTests {
    /// The request of a person who signs in for the first time, with the session `s-PERSON`.
    private static func request(of person: String, _ flow: FlowFixture, code: Bool = true) throws -> SignInRequest {
        let device = try flow.apple.signIn(person: person, nonce: "nonce-of-\(person)")
        return try flow.request(device, nonce: "nonce-of-\(person)", session: "s-\(person)", code: code)
    }

    @Test(
        "Sign-ins that wait at the same time share transactions, with a code and without one.",
        arguments: [true, false]
    )
    func sharedTransactions(code: Bool) async throws {
        try await FlowFixture.with { flow in
            let people = (0..<24).map { "person\($0)" }
            let requests = try people.map { try Self.request(of: $0, flow, code: code) }
            let answers = try await flow.database.withOpenTransaction { session throws(PostgresError) in
                try session.execute(script: "LOCK TABLE siwa.sign_ins IN SHARE MODE")
            } _: {
                // The first one waits for the lock, and the others for the first one.
                let tasks = requests.map { request in Task { try await flow.signIn(request) } }
                try await flow.untilOneWaits()
                return tasks
            }
            for task in answers {
                let answer = try await task.value
                #expect(answer.isNewAccount && answer.session?.isLive == true)
                #expect(answer.refreshToken == (code ? .stored : .none))
            }
            let transactions = try await flow.texts("SELECT count(DISTINCT xmin::text)::text FROM siwa.sign_ins")[0]
            #expect(try #require(Int(transactions)) < people.count, "\(transactions) transactions")
            #expect(try await flow.texts("SELECT count(*)::text FROM siwa.live_sessions") == ["\(people.count)"])
            #expect(try await flow.texts("SELECT count(*)::text FROM siwa.apple_tokens") == [code ? "24" : "0"])
        }
    }

    @Test("Of simultaneous requests with the same code, one that is refused does not get the reservation of another.")
    func sameCode() async throws {
        try await FlowFixture.with { flow in
            _ = try await flow.signIn(Self.request(of: "ada", flow))
            let first = try Self.request(of: "eve", flow)
            let device = try flow.apple.signIn(person: "bob", nonce: "nonce-of-bob")
            let requests = try (Array(repeating: "s-ada", count: 8) + ["s-bob"]).map { session in
                try flow.request(device, nonce: "nonce-of-bob", session: session, token: false)
            }
            let (lead, tasks) = try await flow.database.withOpenTransaction { session throws(PostgresError) in
                try session.execute(script: "LOCK TABLE siwa.sign_ins IN SHARE MODE")
            } _: {
                let lead = Task { await flow.refusal(first) }
                try await flow.untilOneWaits()
                // These wait for the first one, and so share a transaction.
                let tasks = requests.map { request in Task { await flow.refusal(request) } }
                for _ in 0..<20 { _ = try await flow.texts("SELECT 1::text") }
                return (lead, tasks)
            }
            #expect(await lead.value == nil)
            var reasons: [Problem.Reason?] = []
            for task in tasks { reasons.append(await task.value) }
            #expect(reasons.last == .some(nil))
            // Which of the two depends on the order in which they arrive.
            for reason in reasons.dropLast() { #expect(reason == .sessionTaken || reason == .tokenUsed) }
            #expect(flow.apple.requests == 3)
            let sessions = try await flow.texts("SELECT session_id FROM siwa.live_sessions ORDER BY 1")
            #expect(sessions == ["s-ada", "s-bob", "s-eve"])
        }
    }

    @Test("A person whose row an application has locked delays no other.")
    func locked() async throws {
        try await FlowFixture.with { flow in
            let first = try flow.apple.signIn(members: ",\"age\":60")
            _ = try await flow.signIn(flow.request(first))
            let device = try flow.apple.signIn(nonce: "nonce-two")
            let request = try flow.request(device, nonce: "nonce-two", session: "two")
            let attempt = try await flow.database.withOpenTransaction { session throws(PostgresError) in
                try session.execute(script: "SELECT FROM siwa.accounts FOR UPDATE")
            } _: {
                let attempt = Task { try await flow.signIn(request) }
                try await flow.untilOneWaits()
                for person in ["bob", "eve"] {
                    let answer = try await flow.signIn(try Self.request(of: person, flow))
                    #expect(answer.session?.isLive == true)
                }
                return attempt
            }
            #expect(try await attempt.value.session?.isLive == true)
        }
    }

    @Test(
        "Of sign-ins at the same time, the database can refuse one without an effect on the others.",
        arguments: [true, false]
    )
    func refusedByDatabase(code: Bool) async throws {
        try await FlowFixture.with { flow in
            let requests = try ["ada", "bob", "eve"].map { try Self.request(of: $0, flow, code: code) }
            let bob = try flow.apple.signIn(person: "bob", nonce: "unused").subject
            try await flow.run(
                """
                CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'refused'; END $$;
                CREATE TRIGGER refuse BEFORE INSERT ON siwa.accounts FOR EACH ROW WHEN (new.sub = '\(bob)')
                    EXECUTE FUNCTION refuse();
                """
            )
            let reasons = await withTaskGroup(of: (Int, Problem.Reason?).self) { group in
                for (index, request) in requests.enumerated() {
                    group.addTask { (index, await flow.refusal(request)) }
                }
                return await group.reduce(into: [Problem.Reason?](repeating: nil, count: 3)) { $0[$1.0] = $1.1 }
            }
            #expect(reasons == [nil, .databaseUnavailable, nil])
            let sessions = "SELECT session_id FROM siwa.live_sessions ORDER BY 1"
            #expect(try await flow.texts(sessions) == ["s-ada", "s-eve"])
        }
    }
}

extension FlowFixture {
    /// Waits until a statement of this database waits for a lock of another one.
    fileprivate func untilOneWaits() async throws {
        let waiting = """
            SELECT pid::text FROM pg_stat_activity
            WHERE datname = current_database() AND wait_event_type = 'Lock' AND wait_event <> 'advisory'
            """
        while try await texts(waiting).isEmpty { await Task.yield() }
    }
}
