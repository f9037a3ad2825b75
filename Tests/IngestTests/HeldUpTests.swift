import AppleTokens
import Postgres
import Spool
import StoreTestSupport
import TestSupport
import Testing

@testable import Ingest

@Suite("Notifications that can't be stored at present", .timeLimit(.minutes(5)))
struct HeldUpTests {
    /// A lasting fault that concerns the notifications about `held0` to `held2`.
    enum Obstacle: String, CaseIterable, CustomTestStringConvertible {
        case lock = "a row that an application has locked"
        case trigger = "a trigger that refuses it"

        var testDescription: String { rawValue }

        /// Runs `body` while the obstacle is there.
        func with(_ fixture: IngestFixture, _ body: () async throws -> Void) async throws {
            switch self {
            case .lock:
                try await fixture.database.withOpenTransaction { session throws(PostgresError) in
                    // It waits for the end of the test itself, which may take longer than a lock is waited for.
                    try session.execute(script: "SET LOCAL lock_timeout = 0")
                    try session.execute(script: "SELECT FROM siwa.accounts WHERE sub LIKE 'held%' FOR UPDATE")
                } _: {
                    try await body()
                }
            case .trigger:
                try await fixture.run(
                    """
                    CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS $$
                    BEGIN
                        RAISE EXCEPTION 'not today';
                    END $$;
                    CREATE TRIGGER refuse BEFORE UPDATE ON siwa.accounts FOR EACH ROW WHEN (NEW.sub LIKE 'held%')
                        EXECUTE FUNCTION public.refuse()
                    """
                )
                try await body()
                try await fixture.run("DROP TRIGGER refuse ON siwa.accounts")
            }
        }
    }

    /// Runs a test in which those and 20 others are known, with a short patience for locks.
    private func withPeople(spool: Spool? = nil, _ body: (IngestFixture) async throws -> Void) async throws {
        try await TestDatabase.with(.siwa) { database in
            var settings = database.settings
            settings.lockTimeout = .milliseconds(100)
            try await IngestFixture.with(database, settings, spool: spool) { fixture in
                await fixture.untilStoring()
                let people = (0..<3).map { "held\($0)" } + (0..<20).map { "person\($0)" }
                let bodies = try people.map { try fixture.body(sub: $0) }
                #expect(await fixture.client.answers(bodies).allSatisfy { $0 == .acknowledged })
                try await body(fixture)
            }
        }
    }

    private func stored(_ ids: String, _ fixture: IngestFixture) async throws -> Int {
        try await fixture.texts("SELECT jti FROM siwa.notifications WHERE jti LIKE '\(ids)%'").count
    }

    @Test("With a spool, only they wait in it, while all others are stored.", arguments: Obstacle.allCases)
    func withSpool(_ obstacle: Obstacle) async throws {
        let directory = try TemporaryDirectory()
        try await withPeople(spool: try Spool(directory: directory.path, limit: 1 << 30)) { fixture in
            try await obstacle.with(fixture) {
                let held = try fixture.body("email-enabled", sub: "held0", id: "held")
                #expect(await fixture.client.answer(held) == .acknowledged)
                for person in 0..<10 {
                    let other = try fixture.body("account-delete", sub: "person\(person)", id: "one\(person)")
                    #expect(await fixture.client.answer(other) == .acknowledged)
                }
                let others = try (10..<20).map { person in
                    try fixture.body("account-delete", sub: "person\(person)", id: "many\(person)")
                }
                #expect(await fixture.client.answers(others).allSatisfy { $0 == .acknowledged })
                while try await stored("one", fixture) + stored("many", fixture) < 20 { await Task.yield() }
                await fixture.until { $0.service.storage == .database }
                while try directory.spoolFiles.map({ $0.hasSuffix(".refused.spool") }) != [true] { await Task.yield() }
                #expect(try await stored("held", fixture) == 0)
            }
            await fixture.until { $0.service.spoolBytes == 0 }
            #expect(try await stored("held", fixture) == 1)
            #expect(try await fixture.texts("SELECT reason FROM siwa.dead_letters").isEmpty)
        }
    }

    @Test(
        "Without a spool, they are answered 503, and the others in their batch are stored.",
        arguments: Obstacle.allCases
    )
    func withoutSpool(_ obstacle: Obstacle) async throws {
        try await withPeople { fixture in
            try await obstacle.with(fixture) {
                for round in 0..<3 {
                    let held = try fixture.body("email-enabled", sub: "held\(round)", id: "held\(round)")
                    let others = try (0..<20).map { person in
                        try fixture.body("email-enabled", sub: "person\(person)", id: "other\(round)-\(person)")
                    }
                    let answers = await fixture.client.answers([held] + others)
                    #expect(answers.first == .unavailable(.databaseUnavailable, retryAfterSeconds: 5))
                    #expect(answers.dropFirst().allSatisfy { $0 == .acknowledged }, "round \(round)")
                }
                #expect(fixture.service.storage == .database)
            }
            #expect(try await stored("held", fixture) == 0)
            #expect(try await fixture.texts("SELECT reason FROM siwa.dead_letters").isEmpty)
        }
    }
}
