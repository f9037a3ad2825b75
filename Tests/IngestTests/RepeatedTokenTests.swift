import AppleTokens
import AppleSimulator
import Glibc
import Spool
import StoreTestSupport
import TestSupport
import Testing

@testable import Ingest
@testable import Telemetry

@Suite("Repeated tokens", .timeLimit(.minutes(5)))
struct RepeatedTokenTests {
    /// Runs a test with a service that has a spool, and a role to shut out.
    ///
    /// - Parameter deadLetters: the limit of dead letters, which are then counted.
    private func withSpool(
        limit: Int64 = 1 << 30,
        deadLetters: Int? = nil,
        _ body: (IngestFixture, DaemonRole, TemporaryDirectory) async throws -> Void
    ) async throws {
        try await TestDatabase.with(.siwa) { database in
            try await DaemonRole.with(database) { role in
                let directory = try TemporaryDirectory()
                let spool = try Spool(directory: directory.path, limit: limit)
                var limits = IngestService.Limits()
                if let deadLetters { limits.deadLetters = deadLetters }
                let settles = deadLetters != nil
                try await IngestFixture.with(database, role.settings, limits: limits, settles: settles, spool: spool) {
                    fixture in
                    await fixture.until { $0.service.storage == .database }
                    try await body(fixture, role, directory)
                }
            }
        }
    }

    /// The body with so much around its token that it is as large as a body may be.
    private func padded(_ body: String) -> String {
        String(body.dropLast()) + #","padding":"\#(String(repeating: "x", count: 65_000 - body.utf8.count))"}"#
    }

    @Test("While PostgreSQL is away, a foreign token that is sent 150 times is spooled once, without its padding.")
    func spooledOnce() async throws {
        try await withSpool(limit: 200_000) { fixture, role, _ in
            try await role.shutOut()
            let foreign = padded(try fixture.body(app: "com.example.unheard.of"))
            for _ in 0..<10 {
                let answers = await fixture.client.answers(Array(repeating: foreign, count: 15))
                #expect(answers.allSatisfy { $0 == .acknowledged })
            }
            await fixture.until { $0.service.storage == .spool }
            #expect(try #require(fixture.service.spoolBytes) < 3_000)
            #expect(await fixture.client.answer(try fixture.body("account-deleted", id: "genuine")) == .acknowledged)
            try await role.letIn()
            await fixture.until { $0.service.spoolBytes == 0 }
            #expect(try await fixture.texts("SELECT jti FROM siwa.notifications") == ["genuine"])
            let kept = try await fixture.texts("SELECT reason || ' ' || octet_length(body) FROM siwa.dead_letters")
            #expect(kept == ["unknown-audience \(try tokenLength(foreign))"])
        }
    }

    /// How many transactions stored a batch.
    private static func batches(_ fixture: IngestFixture) -> Int {
        fixture.metrics.batchSize.snapshot.cumulative.last ?? 0
    }

    /// The bytes of the token in a padded body.
    private func tokenLength(_ body: String) throws -> Int {
        let padding = try #require(body.firstRange(of: #","padding""#))
        return IngestFixture.token(in: body[..<padding.lowerBound] + "}").utf8.count
    }

    @Test("While PostgreSQL is away, a genuine token that is sent 150 times is spooled once.")
    func genuineSpooledOnce() async throws {
        try await withSpool(limit: 200_000) { fixture, role, _ in
            try await role.shutOut()
            let body = try fixture.body(id: "genuine")
            for _ in 0..<10 {
                let answers = await fixture.client.answers(Array(repeating: body, count: 15))
                #expect(answers.allSatisfy { $0 == .acknowledged })
            }
            #expect(try #require(fixture.service.spoolBytes) < 3_000)
            try await role.letIn()
            await fixture.until { $0.service.spoolBytes == 0 }
            #expect(try await fixture.texts("SELECT jti FROM siwa.notifications") == ["genuine"])
        }
    }

    @Test("While PostgreSQL is connected, a repeated foreign token causes no transaction and uses no room.")
    func noTransaction() async throws {
        var limits = IngestService.Limits()
        limits.deadLetters = 1
        try await IngestFixture.with(limits: limits) { fixture in
            await fixture.untilStoring()
            let foreign = padded(try fixture.body(app: "com.example.unheard.of"))
            #expect(await fixture.client.answer(foreign) == .acknowledged)
            await fixture.until { Self.batches($0) == 1 }
            for _ in 0..<10 {
                let answers = await fixture.client.answers(Array(repeating: foreign, count: 15))
                #expect(answers.allSatisfy { $0 == .acknowledged })
            }
            // Something that is stored, so that what went before it is counted.
            #expect(await fixture.client.answer(try fixture.body()) == .acknowledged)
            await fixture.until { Self.batches($0) > 1 }
            #expect(Self.batches(fixture) == 2)
            let kept = try await fixture.texts("SELECT deliveries || ' ' || octet_length(body) FROM siwa.dead_letters")
            #expect(kept == ["1 \(try tokenLength(foreign))"])
        }
    }

    @Test(
        "A token that was stored as a dead letter is a notification under another policy, also while PostgreSQL is away."
    )
    func keptUnderAnotherPolicy() async throws {
        try await withSpool(limit: 200_000) { fixture, role, _ in
            let body = try fixture.body(app: "com.example.late", id: "late")
            #expect(await fixture.client.answer(body) == .acknowledged)
            await fixture.until { Self.batches($0) == 1 }
            let audiences = try AudienceMap(parsing: "AAAAAAAAAA/com.example.one,AAAAAAAAAA/com.example.late")
            fixture.service.replace(policy: NotificationPolicy(audiences: audiences))
            try await role.shutOut()
            #expect(await fixture.client.answer(body) == .acknowledged)
            try await role.letIn()
            await fixture.until { $0.service.storage == .database && $0.service.spoolBytes == 0 }
            #expect(try await fixture.texts("SELECT jti FROM siwa.notifications") == ["late"])
        }
    }

    @Test("A token is spooled again after the spool directory was removed.")
    func removedDirectory() async throws {
        try await withSpool(limit: 200_000) { fixture, role, directory in
            try await role.shutOut()
            let body = try fixture.body(id: "genuine")
            #expect(await fixture.client.answer(body) == .acknowledged)
            await fixture.until { $0.service.storage == .spool }
            for name in try directory.names { unlink(directory.file(name)) }
            try #require(rmdir(directory.path) == 0)
            #expect(await fixture.client.answer(body) == .acknowledged)
            try await role.letIn()
            await fixture.until { $0.service.storage == .database && $0.service.spoolBytes == 0 }
            #expect(try await fixture.texts("SELECT jti FROM siwa.notifications") == ["genuine"])
        }
    }

    @Test("A spooled dead letter that becomes a notification does not count against the limit of dead letters.")
    func reservation() async throws {
        try await withSpool(deadLetters: 1) { fixture, role, _ in
            try await role.shutOut()
            let late = try fixture.body(app: "com.example.late", id: "late")
            #expect(await fixture.client.answer(late) == .acknowledged)
            let audiences = try AudienceMap(parsing: "AAAAAAAAAA/com.example.one,AAAAAAAAAA/com.example.late")
            fixture.service.replace(policy: NotificationPolicy(audiences: audiences))
            try await role.letIn()
            await fixture.until { $0.service.storage == .database && $0.service.spoolBytes == 0 }
            #expect(try await fixture.texts("SELECT jti FROM siwa.notifications") == ["late"])
            let foreign = try fixture.body(app: "com.example.unheard.of")
            while await fixture.client.answer(foreign) != .acknowledged, !Task.isCancelled {
                await Task.yield()
            }
            #expect(try await fixture.texts("SELECT reason FROM siwa.dead_letters") == ["unknown-audience"])
        }
    }

    @Test("Dead letters in the spool count for their limit, until they are in the database, where they count too.")
    func limitInSpool() async throws {
        try await withSpool(deadLetters: 3) { fixture, role, _ in
            // A notification that PostgreSQL refuses stays in the spool.
            try await fixture.run(
                """
                CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS $$
                BEGIN
                    RAISE EXCEPTION 'not today';
                END $$;
                CREATE TRIGGER refuse BEFORE INSERT ON siwa.accounts FOR EACH ROW WHEN (NEW.sub = 'stuck')
                    EXECUTE FUNCTION public.refuse()
                """
            )
            try await role.shutOut()
            #expect(await fixture.client.answer(try fixture.body(sub: "stuck", id: "stuck")) == .acknowledged)
            var kept = 0
            for number in 0..<10 {
                let answer = await fixture.client.answer(try fixture.body(app: "com.example.unheard\(number)"))
                if answer == .acknowledged { kept += 1 }
            }
            #expect(kept == 3)
            try await role.letIn()
            let letters = "SELECT count(*)::text FROM siwa.dead_letters"
            while try await fixture.texts(letters) != ["3"] { await Task.yield() }
            let more = await fixture.client.answer(try fixture.body(app: "com.example.unheard.of"))
            #expect(more == .unavailable(.deadLetterLimit, retryAfterSeconds: 300))
            #expect(try await fixture.texts(letters) == ["3"])
            // As an operator does who removes them. There is room again.
            try await fixture.run("DELETE FROM siwa.dead_letters")
            let late = try fixture.body(app: "com.example.late")
            while await fixture.client.answer(late) != .acknowledged, !Task.isCancelled { await Task.yield() }
        }
    }

    @Test("After a connection broke, a repeated token whose letter is gone is stored again.", arguments: [false, true])
    func lostLetter(_ isAway: Bool) async throws {
        try await TestDatabase.with(.siwa) { database in
            try await DaemonRole.with(database) { role in
                try await IngestFixture.with(database, role.settings) { fixture in
                    await fixture.untilStoring()
                    let foreign = try fixture.body(app: "com.example.unheard.of")
                    #expect(await fixture.client.answer(foreign) == .acknowledged)
                    // As after a failover to a standby that had not received it.
                    try await fixture.run("DELETE FROM siwa.dead_letters")
                    try await role.shutOut()
                    let sessions =
                        "SELECT usename::text FROM pg_stat_activity WHERE usename = 'daemon_of_' || current_database()"
                    while try await !fixture.texts(sessions).isEmpty { await Task.yield() }
                    // A notification finds that the connection is gone.
                    if isAway { _ = await fixture.client.answer(try fixture.body(id: "away")) }
                    try await role.letIn()
                    // It may arrive while the writer gives the connection up.
                    let body = try fixture.body(id: "back")
                    while await fixture.client.answer(body) != .acknowledged, !Task.isCancelled {
                        await fixture.untilStoring()
                    }
                    #expect(await fixture.client.answer(foreign) == .acknowledged)
                    #expect(try await fixture.texts("SELECT reason FROM siwa.dead_letters") == ["unknown-audience"])
                }
            }
        }
    }

    @Test("While PostgreSQL is away, a repeated token whose letter may be gone is kept in the spool.")
    func lostLetterWithSpool() async throws {
        try await withSpool(limit: 1 << 30) { fixture, role, _ in
            await fixture.untilStoring()
            let foreign = try fixture.body(app: "com.example.unheard.of")
            #expect(await fixture.client.answer(foreign) == .acknowledged)
            // As after a failover to a standby that had not received it.
            try await fixture.run("DELETE FROM siwa.dead_letters")
            try await role.shutOut()
            #expect(await fixture.client.answer(try fixture.body(id: "away")) == .acknowledged)
            await fixture.until { $0.service.storage == .spool }
            #expect(await fixture.client.answer(foreign) == .acknowledged)
            try await role.letIn()
            await fixture.until { $0.service.storage == .database && $0.service.spoolBytes == 0 }
            #expect(try await fixture.texts("SELECT reason FROM siwa.dead_letters") == ["unknown-audience"])
        }
    }

    @Test("A token is not acknowledged as known before its letter is durable.")
    func notBeforeDurable() async throws {
        try await IngestFixture.with { fixture in
            await fixture.untilStoring()
            try await fixture.run("ALTER TABLE siwa.dead_letters ADD CONSTRAINT none CHECK (false) NOT VALID")
            let foreign = try fixture.body(app: "com.example.unheard.of")
            for _ in 0..<3 {
                guard case .unavailable = await fixture.client.answer(foreign) else {
                    Issue.record("it is nowhere")
                    return
                }
                await fixture.untilStoring()
            }
            try await fixture.run("ALTER TABLE siwa.dead_letters DROP CONSTRAINT none")
            var answer = await fixture.client.answer(foreign)
            while answer != .acknowledged, !Task.isCancelled { answer = await fixture.client.answer(foreign) }
            #expect(try await fixture.texts("SELECT reason FROM siwa.dead_letters") == ["unknown-audience"])
        }
    }

    @Test("While PostgreSQL is away, foreign tokens use at most a tenth of the spool.")
    func tenth() async throws {
        let limit: Int64 = 200_000
        try await withSpool(limit: limit) { fixture, role, directory in
            try await role.shutOut()
            var (kept, refused) = (0, 0)
            for number in 0..<60 {
                switch await fixture.client.answer(try fixture.body(app: "com.example.unheard\(number)")) {
                case .acknowledged: kept += 1
                case .unavailable(.deadLetterLimit, _): refused += 1
                case let other: Issue.record("unexpected \(other)")
                }
            }
            #expect(kept > 5 && refused > 5)
            #expect(try #require(fixture.service.spoolBytes) <= limit / 10)
            // It can still accept durably.
            #expect(fixture.service.storage == .spool)
            let deletions = try (0..<60).map { try fixture.body("account-deleted", sub: "p\($0)", id: "\($0)") }
            #expect(await fixture.client.answers(deletions).allSatisfy { $0 == .acknowledged })
            #expect(fixture.log.count("no more dead letters are kept") == 1)
            try await role.letIn()
            await fixture.until { $0.service.spoolBytes == 0 }
            let counts = try await fixture.texts(
                "SELECT (SELECT count(*) FROM siwa.notifications) || ' ' || count(*) FROM siwa.dead_letters"
            )
            #expect(counts == ["60 \(kept)"])
            #expect(try directory.spoolFiles == [])
        }
    }
}
