import AccountStore
import AppleTokens
import AppleSimulator
import Postgres
import Spool
import StoreTestSupport
import TestSupport
import Testing

@testable import Ingest

@Suite("Unverified letters", .timeLimit(.minutes(5)))
struct LetterSettlementTests {
    private func settle(_ fixture: IngestFixture) async throws -> LetterSettlement.Effects {
        let pool = ConnectionPool(fixture.database.settings, maximum: 1)
        var settlement = LetterSettlement(service: fixture.service, pool: pool, trust: IngestFixture.trust)
        let effects = try await settlement.settle()
        await pool.close()
        return effects
    }

    /// Has letters kept while the key endpoint is down.
    private func keep(_ bodies: [String], _ fixture: IngestFixture) async {
        fixture.endpoint.serve(nil)
        for body in bodies {
            guard case .unavailable(.keysUnavailable, _) = await fixture.client.answer(body) else {
                Issue.record("its key can't be had")
                continue
            }
        }
    }

    /// Serves a set, and waits until it is in force.
    private func serve(_ keySet: String, _ fixture: IngestFixture) async throws {
        let version = fixture.service.keys.keys.version
        fixture.endpoint.serve(keySet)
        // Without a floor any unknown key causes a fetch.
        _ = await fixture.client.answer(try fixture.body(signedBy: .generate()))
        await fixture.until { $0.service.keys.keys.version != version }
    }

    @Test("Letters that a new key signed are replayed when the key appears.")
    func replayed() async throws {
        try await IngestFixture.with(floor: .zero, leeway: .zero, settles: true) { fixture in
            await fixture.untilStoring()
            let rotated = try SimulatedApple.generate()
            await keep([try fixture.body("account-deleted", id: "genuine", signedBy: rotated)], fixture)
            fixture.endpoint.serve(rotated.keySetJSON)
            while try await fixture.texts("SELECT jti FROM siwa.notifications").isEmpty, !Task.isCancelled {
                await Task.yield()
            }
            let letters = try await fixture.texts(
                "SELECT status || ' ' || outcome || ' ' || resolved_by || ': ' || note FROM siwa.dead_letters"
            )
            #expect(letters == ["replayed applied siwad: the key that it names has come"])
            let actions = try await fixture.texts(
                "SELECT operator || ' ' || action || ' ' || target || ' ' || affected FROM siwa.operator_actions"
            )
            #expect(actions == ["siwad dead-letters replay --id 1 1"])
            #expect(try await fixture.texts("SELECT source FROM siwa.notifications") == ["replay"])
        }
    }

    @Test("Letters whose key a later set lacks are discarded, with an entry in the audit.")
    func discarded() async throws {
        try await IngestFixture.with(floor: .zero, leeway: .zero) { fixture in
            await fixture.untilStoring()
            let (genuine, late) = (try fixture.body(), try SimulatedApple.generate())
            await keep((0..<250).map { IngestFixture.body(genuine, naming: "invented\($0)") }, fixture)
            #expect(try await settle(fixture) == .init(), "no set was fetched since")
            try await serve(late.keySetJSON, fixture)
            #expect(try await settle(fixture) == .init(replayed: 0, discarded: 250))
            let letters = try await fixture.texts(
                "SELECT DISTINCT status || ' ' || resolved_by || ' ' || left(note, 18) FROM siwa.dead_letters"
            )
            #expect(letters == ["discarded siwad Apple's key set of"])
            let actions = try await fixture.texts(
                "SELECT operator || ' ' || action || ' ' || target || ' ' || affected FROM siwa.operator_actions"
            )
            #expect(actions == ["siwad dead-letters discard --reason keys-unavailable 250"])
        }
    }

    @Test("During a flood only the latest discarded letters are kept, so that the disk does not fill.")
    func bounded() async throws {
        try await IngestFixture.with(floor: .zero, leeway: .zero) { fixture in
            await fixture.untilStoring()
            // Others than those stay: another operator's, and one that Apple signed.
            try await fixture.run(
                """
                INSERT INTO siwa.dead_letters (
                    received_at, last_received_at, reason, detail, body, token_digest, status, resolved_at, resolved_by,
                    resolved_by_role, verified_kid, verified_at
                )
                SELECT
                    now() - interval '1 day', now(), 'keys-unavailable', 'd', 'b', sha256(n::text::bytea), 'discarded', now(),
                    CASE n WHEN 1 THEN 'kim' ELSE 'siwad' END, 'role', CASE n WHEN 2 THEN 'k' END, CASE n WHEN 2 THEN now() END
                FROM generate_series(1, \(LetterSettlement.discardedLimit + 10)) AS n
                """
            )
            let genuine = try fixture.body()
            await keep((0..<5).map { IngestFixture.body(genuine, naming: "invented\($0)") }, fixture)
            try await serve(try SimulatedApple.generate().keySetJSON, fixture)
            #expect(try await settle(fixture) == .init(replayed: 0, discarded: 5))
            let counts = try await fixture.texts(
                "SELECT count(*)::text FROM siwa.dead_letters GROUP BY resolved_by, verified_kid ORDER BY count(*)"
            )
            #expect(counts == ["1", "1", "\(LetterSettlement.discardedLimit)"])
            let latest = try await fixture.texts("SELECT max(id)::text FROM siwa.dead_letters")
            #expect(latest == ["\(LetterSettlement.discardedLimit + 15)"])
        }
    }

    @Test("A forgery that names the new key is discarded and has no effect.")
    func forged() async throws {
        try await IngestFixture.with(floor: .zero, leeway: .zero) { fixture in
            await fixture.untilStoring()
            let rotated = try SimulatedApple.generate()
            await keep([IngestFixture.body(try fixture.body(), naming: rotated.keyID)], fixture)
            try await serve(rotated.keySetJSON, fixture)
            #expect(try await settle(fixture) == .init(replayed: 0, discarded: 1))
            let notes = try await fixture.texts("SELECT note FROM siwa.dead_letters")
            #expect(notes == ["the key that it names did not sign it"])
            #expect(try await fixture.texts("SELECT sub FROM siwa.accounts").isEmpty)
        }
    }

    @Test("A letter is not discarded by a set that was requested before it arrived, or if its key is only unusable.")
    func undecided() async throws {
        try await IngestFixture.with(floor: .zero, leeway: .zero) { fixture in
            await fixture.untilStoring()
            let (twin, otherTwin) = (try SimulatedApple.generate(), try SimulatedApple.generate())
            let impostor = try SimulatedApple(key: otherTwin.key, keyID: twin.keyID)
            await keep([try fixture.body(signedBy: twin)], fixture)
            let keys = [fixture.apple, twin, impostor].map { $0.keySetJSON.dropFirst(9).dropLast(2) }
            try await serve("{\"keys\":[\(keys.joined(separator: ","))]}", fixture)
            #expect(fixture.service.keys.keys.unusable == [twin.keyID])
            #expect(try await settle(fixture) == .init())
            await keep([try fixture.body(signedBy: .generate())], fixture)
            #expect(try await settle(fixture) == .init())
            let statuses = try await fixture.texts("SELECT status FROM siwa.dead_letters")
            #expect(statuses == ["open", "open"])
            #expect(try await fixture.texts("SELECT note FROM siwa.operator_actions").isEmpty)
        }
    }

    @Test(
        "A letter is not discarded by a set that may be older, because another daemon's clock may be slow."
    )
    func slowClock() async throws {
        try await IngestFixture.with(floor: .zero) { fixture in
            await fixture.untilStoring()
            // Another daemon received it after the fetch, by a clock that is two minutes slow.
            try await serve(try SimulatedApple.generate().keySetJSON, fixture)
            await keep([try fixture.body(signedBy: .generate())], fixture)
            try await fixture.run("UPDATE siwa.dead_letters SET received_at = received_at - interval '2 minutes'")
            #expect(try await settle(fixture) == .init())
            try await fixture.run("UPDATE siwa.dead_letters SET received_at = received_at - interval '4 minutes'")
            #expect(try await settle(fixture) == .init(replayed: 0, discarded: 1))
        }
    }

    @Test("A letter that PostgreSQL can't store at present prevents no other from being discarded.")
    func heldUp() async throws {
        try await IngestFixture.with(floor: .zero, leeway: .zero) { fixture in
            await fixture.untilStoring()
            let rotated = try SimulatedApple.generate()
            let genuine = try fixture.body("account-deleted", signedBy: rotated)
            await keep([genuine, IngestFixture.body(genuine, naming: "invented")], fixture)
            try await fixture.run(
                """
                CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS $$
                BEGIN
                    RAISE EXCEPTION 'not today';
                END $$;
                CREATE TRIGGER refuse BEFORE INSERT ON siwa.accounts FOR EACH ROW EXECUTE FUNCTION public.refuse()
                """
            )
            try await serve(rotated.keySetJSON, fixture)
            let obstacle = "PostgreSQL can't store it at present (SQLSTATE P0001)."
            #expect(try await settle(fixture) == .init(replayed: 0, discarded: 1, obstacle: obstacle))
            #expect(try await settle(fixture) == .init(replayed: 0, discarded: 0, obstacle: obstacle))
            let letters = "SELECT status || ' ' || reason FROM siwa.dead_letters ORDER BY id"
            #expect(try await fixture.texts(letters) == ["open keys-unavailable", "discarded keys-unavailable"])
            let actions = try await fixture.texts("SELECT action FROM siwa.operator_actions")
            #expect(actions == ["dead-letters discard"])
            try await fixture.run("DROP TRIGGER refuse ON siwa.accounts")
            #expect(try await settle(fixture) == .init(replayed: 1, discarded: 0))
        }
    }

    @Test("A letter of another issuer is discarded with a note that says so.")
    func otherIssuer() async throws {
        try await IngestFixture.with(floor: .zero, leeway: .zero) { fixture in
            await fixture.untilStoring()
            let rotated = try SimulatedApple.generate()
            let claims = #"{"iss":"https://issuer.example","aud":"com.example.one","events":"{}"}"#
            await keep([SimulatedApple.body(token: try rotated.token(claims: claims))], fixture)
            try await serve(rotated.keySetJSON, fixture)
            #expect(try await settle(fixture) == .init(replayed: 0, discarded: 1))
            #expect(try await fixture.texts("SELECT note FROM siwa.dead_letters") == [Rejection.wrongIssuer.title])
        }
    }

    @Test("A repeated token whose letter was removed is stored again.")
    func settledElsewhere() async throws {
        try await IngestFixture.with(floor: .zero, settles: true) { fixture in
            await fixture.untilStoring()
            let bodies = [try fixture.body(signedBy: .generate()), try fixture.body(signedBy: .generate())]
            await keep(bodies, fixture)
            try await fixture.run("DELETE FROM siwa.dead_letters WHERE id = 1")
            let count = "SELECT count(*)::text FROM siwa.dead_letters"
            while try await fixture.texts(count) == ["1"], !Task.isCancelled { await keep([bodies[0]], fixture) }
            #expect(try await fixture.texts(count) == ["2"])
        }
    }

    @Test("A letter that Apple signed but that can't be processed waits for an operator.")
    func signedButDead() async throws {
        try await IngestFixture.with(floor: .zero, leeway: .zero) { fixture in
            await fixture.untilStoring()
            let rotated = try SimulatedApple.generate()
            await keep([try fixture.body(app: "com.example.unheard.of", signedBy: rotated)], fixture)
            try await serve(rotated.keySetJSON, fixture)
            #expect(try await settle(fixture) == .init())
            let letters = try await fixture.texts("SELECT status || ' ' || reason FROM siwa.dead_letters")
            #expect(letters == ["open unknown-audience"])
        }
    }

    @Test("Letters from the spool are settled too when PostgreSQL is back.")
    func spooled() async throws {
        try await TestDatabase.with(.siwa) { database in
            try await DaemonRole.with(database) { role in
                let directory = try TemporaryDirectory()
                let spool = try Spool(directory: directory.path, limit: 1 << 20)
                try await IngestFixture.with(
                    database,
                    role.settings,
                    floor: .zero,
                    leeway: .zero,
                    settles: true,
                    spool: spool
                ) {
                    fixture in
                    await fixture.until { $0.service.storage == .database }
                    try await role.shutOut()
                    let rotated = try SimulatedApple.generate()
                    let genuine = try fixture.body("account-deleted", id: "genuine", signedBy: rotated)
                    await keep([genuine, IngestFixture.body(genuine, naming: "invented")], fixture)
                    try await serve(rotated.keySetJSON, fixture)
                    try await role.letIn()
                    let settled = "SELECT id::text FROM siwa.dead_letters WHERE status <> 'open'"
                    while try await fixture.texts(settled).count < 2, !Task.isCancelled { await Task.yield() }
                    let statuses = try await fixture.texts("SELECT status FROM siwa.dead_letters ORDER BY status")
                    #expect(statuses == ["discarded", "replayed"])
                    #expect(try await fixture.texts("SELECT jti FROM siwa.notifications") == ["genuine"])
                }
            }
        }
    }
}
