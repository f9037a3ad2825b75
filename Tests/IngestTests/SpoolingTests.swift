import AppleTokens
import AppleSimulator
import Basics
import Spool
import StoreTestSupport
import Telemetry
import TestSupport
import Testing

@testable import Ingest

@Suite("The spool while PostgreSQL is away", .timeLimit(.minutes(5)))
struct SpoolingTests {
    /// Runs a test with a service that has a spool, and a role to shut out.
    private func withSpool(
        limit: Int64 = 1 << 30,
        _ body: (IngestFixture, DaemonRole, TemporaryDirectory) async throws -> Void
    ) async throws {
        try await TestDatabase.with(.siwa) { database in
            try await DaemonRole.with(database) { role in
                let directory = try TemporaryDirectory()
                let spool = try Spool(directory: directory.path, limit: limit)
                try await IngestFixture.with(database, role.settings, spool: spool) { fixture in
                    await fixture.until { $0.service.storage == .database }
                    try await body(fixture, role, directory)
                }
            }
        }
    }

    @Test(
        "Notifications that arrive while PostgreSQL is away are acknowledged, and stored exactly once when it is back."
    )
    func away() async throws {
        try await withSpool { fixture, role, directory in
            let before = try (0..<20).map { try fixture.body(sub: "person\($0 % 7)", id: "before\($0)") }
            #expect(await fixture.client.answers(before).allSatisfy { $0 == .acknowledged })
            try await role.shutOut()
            for round in 0..<10 {
                let bodies = try (0..<50).map { try fixture.body(sub: "person\($0 % 7)", id: "away\(round).\($0)") }
                #expect(await fixture.client.answers(bodies).allSatisfy { $0 == .acknowledged })
            }
            await fixture.until { $0.service.storage == .spool }
            #expect(fixture.metrics.spoolBytes.value > 0)
            #expect(try await fixture.texts("SELECT count(*)::text FROM siwa.notifications") == ["20"])
            try await role.letIn()
            await fixture.until { $0.service.storage == .database }
            // Notifications that arrive during this time do not wait for it.
            #expect(await fixture.client.answer(try fixture.body(id: "after")) == .acknowledged)
            await fixture.until { $0.service.spoolBytes == 0 }
            #expect(
                try await fixture.texts(
                    "SELECT source || count(*) || count(DISTINCT jti) FROM siwa.notifications GROUP BY source ORDER BY 1"
                ) == ["endpoint2121", "spool500500"]
            )
            #expect(try directory.spoolFiles == [])
        }
    }

    @Test("A spooled notification keeps its time of receipt.")
    func timeOfReceipt() async throws {
        try await withSpool { fixture, role, _ in
            try await role.shutOut()
            #expect(await fixture.client.answer(try fixture.body(id: "a")) == .acknowledged)
            let now = fixture.service.now()
            try await role.letIn()
            await fixture.until { $0.service.spoolBytes == 0 }
            let received = try await fixture.texts(
                "SELECT (extract(epoch FROM received_at) * 1000000)::bigint::text FROM siwa.notifications"
            )
            let microseconds = try #require(received.first.flatMap { Int64($0) })
            #expect(microseconds <= now.microseconds)
        }
    }

    @Test("If a daemon is killed between a commit and the removal of the spool files, nothing is stored twice.")
    func killedInDrain() async throws {
        try await TestDatabase.with(.siwa) { database in
            try await DaemonRole.with(database) { role in
                let directory = try TemporaryDirectory()
                let kept = try TemporaryDirectory()
                let killed = try Spool(directory: directory.path, limit: 1 << 30)
                try await IngestFixture.with(database, role.settings, spool: killed) { fixture in
                    await fixture.until { $0.service.storage == .database }
                    try await role.shutOut()
                    let bodies = try (0..<30).map { try fixture.body(sub: "person\($0)") }
                    #expect(await fixture.client.answers(bodies).allSatisfy { $0 == .acknowledged })
                    let letter = try fixture.body(app: "com.example.unheard.of")
                    #expect(await fixture.client.answer(letter) == .acknowledged)
                    for name in try directory.spoolFiles { try kept.write(try directory.content(name), to: name) }
                    try await role.letIn()
                    await fixture.until { $0.service.spoolBytes == 0 }
                }
                killed.unlock()
                // As the kill would have left them.
                for name in try kept.spoolFiles { try directory.write(try kept.content(name), to: name) }
                try await IngestFixture.with(
                    database,
                    role.settings,
                    spool: try Spool(directory: directory.path, limit: 1 << 30)
                ) { fixture in
                    await fixture.until { $0.service.storage == .database }
                    await fixture.until { $0.service.spoolBytes == 0 }
                    let names = try directory.spoolFiles
                    #expect(names.isEmpty)
                    #expect(
                        try await fixture.texts("SELECT count(*) || ' ' || count(DISTINCT jti) FROM siwa.notifications")
                            == ["30 30"]
                    )
                    #expect(try await fixture.texts("SELECT reason FROM siwa.dead_letters") == ["unknown-audience"])
                }
            }
        }
    }

    @Test(
        "A daemon that starts while PostgreSQL is away accepts notifications, and also stores an earlier run's spool."
    )
    func start() async throws {
        try await TestDatabase.with(.siwa) { database in
            try await DaemonRole.with(database) { role in
                try await role.shutOut()
                let directory = try TemporaryDirectory()
                for run in ["first", "second"] {
                    let spool = try Spool(directory: directory.path, limit: 1 << 30)
                    try await IngestFixture.with(database, role.settings, spool: spool) { fixture in
                        await fixture.until { $0.service.storage == .spool }
                        #expect(await fixture.client.answer(try fixture.body(id: run)) == .acknowledged)
                        guard run == "second" else { return }
                        try await role.letIn()
                        await fixture.until { $0.service.spoolBytes == 0 }
                        let stored = try await fixture.texts("SELECT jti FROM siwa.notifications ORDER BY jti")
                        #expect(stored == ["first", "second"])
                    }
                    spool.unlock()
                }
            }
        }
    }

    @Test(
        "Dead letters are spooled too; one without a verified signature is still answered 503."
    )
    func deadLetters() async throws {
        try await withSpool { fixture, role, _ in
            try await role.shutOut()
            let letter = try fixture.body(app: "com.example.unheard.of")
            #expect(await fixture.client.answer(letter) == .acknowledged)
            fixture.endpoint.serve(nil)
            let unverified = try fixture.body(signedBy: try SimulatedApple.generate())
            guard case .unavailable(.keysUnavailable, _) = await fixture.client.answer(unverified) else {
                Issue.record("its key can't be had")
                return
            }
            try await role.letIn()
            await fixture.until { $0.service.spoolBytes == 0 }
            #expect(
                try await fixture.texts(
                    "SELECT reason || ' ' || (verified_kid IS NOT NULL) FROM siwa.dead_letters ORDER BY 1"
                ) == ["keys-unavailable false", "unknown-audience true"]
            )
            let kept = try await fixture.texts(
                "SELECT convert_from(body, 'UTF8') FROM siwa.dead_letters ORDER BY reason"
            )
            #expect(kept == [unverified, letter].map { IngestFixture.token(in: $0) })
        }
    }

    @Test("A spooled notification whose data PostgreSQL refuses becomes a dead letter.")
    func poison() async throws {
        try await withSpool { fixture, role, _ in
            try await fixture.run("ALTER TABLE siwa.accounts ADD CONSTRAINT no_poison CHECK (sub <> 'person7')")
            try await role.shutOut()
            let bodies = try (0..<20).map { try fixture.body(sub: "person\($0)") }
            #expect(await fixture.client.answers(bodies).allSatisfy { $0 == .acknowledged })
            try await role.letIn()
            await fixture.until { $0.service.spoolBytes == 0 }
            #expect(try await fixture.texts("SELECT count(*)::text FROM siwa.notifications") == ["19"])
            #expect(
                try await fixture.texts("SELECT reason || ' ' || sub FROM siwa.dead_letters")
                    == ["store-rejected person7"]
            )
            #expect(fixture.log.count("constraint no_poison of siwa.accounts") == 1)
        }
    }

    @Test(
        "A read-only disk does not prevent the use of a PostgreSQL server that is back.",
        .enabled(if: TemporaryDirectory.canMount, "needs root, to mount a file system")
    )
    func readOnlyDisk() async throws {
        try await TestDatabase.with(.siwa) { database in
            try await DaemonRole.with(database) { role in
                let disk = try TemporaryDirectory(capacity: 1 << 20)
                let spool = try Spool(directory: disk.file("spool"), limit: 1 << 30)
                try await IngestFixture.with(database, role.settings, spool: spool) { fixture in
                    await fixture.until { $0.service.storage == .database }
                    try await role.shutOut()
                    #expect(await fixture.client.answer(try fixture.body(id: "spooled")) == .acknowledged)
                    // The answer comes before the connection is given up.
                    await fixture.until { $0.service.storage == .spool }
                    try disk.remount(isReadOnly: true)
                    try await role.letIn()
                    await fixture.until { $0.service.storage == .database }
                    #expect(await fixture.client.answer(try fixture.body(id: "live")) == .acknowledged)
                    #expect(
                        try await fixture.texts("SELECT source || ' ' || jti FROM siwa.notifications ORDER BY 1")
                            == ["endpoint live", "spool spooled"]
                    )
                    await fixture.until { $0.log.count("what is in the spool can't be stored") > 0 }
                    try disk.remount(isReadOnly: false)
                    await fixture.until { $0.service.spoolBytes == 0 }
                }
            }
        }
    }

    @Test("A spool that can't be written to refuses nothing that a slow PostgreSQL stores.")
    func slowDatabase() async throws {
        try await withSpool(limit: 1) { fixture, _, _ in
            // Not by waiting for a lock, which has a time limit of its own.
            try await fixture.run(
                """
                CREATE FUNCTION public.wait_for_test() RETURNS trigger LANGUAGE plpgsql AS $$
                BEGIN
                    WHILE NOT pg_try_advisory_xact_lock_shared(4711) LOOP PERFORM pg_sleep(0.005); END LOOP;
                    RETURN NULL;
                END $$;
                CREATE TRIGGER wait_for_test AFTER INSERT ON siwa.accounts
                    FOR EACH ROW WHEN (NEW.sub = 'first') EXECUTE FUNCTION public.wait_for_test();
                SELECT pg_advisory_lock(4711);
                """
            )
            let first = try fixture.body(sub: "first")
            async let firstAnswer = fixture.client.answer(first)
            await fixture.until { !$0.service.queue.held(upTo: .max).isEmpty }
            let bodies = try (0..<3).map { try fixture.body(sub: "person\($0)") }
            async let answers = fixture.client.answers(bodies)
            await fixture.until { $0.log.count("the spool can't be written to; PostgreSQL takes all") == 1 }
            try await fixture.letCommit()
            #expect(await firstAnswer == .acknowledged)
            #expect(await answers.allSatisfy { $0 == .acknowledged })
            #expect(try await fixture.texts("SELECT count(*)::text FROM siwa.notifications") == ["4"])
            #expect(fixture.log.count("they are answered from the spool") == 0)
        }
    }

    @Test("When the spool is full, requests are answered 503 until PostgreSQL is back.")
    func limit() async throws {
        try await withSpool(limit: 2_000) { fixture, role, _ in
            try await role.shutOut()
            var answers: [IngestResponse] = []
            for index in 0..<3 { answers.append(await fixture.client.answer(try fixture.body(id: "\(index)"))) }
            let refused = IngestResponse.unavailable(.databaseUnavailable, retryAfterSeconds: 5)
            #expect(answers.first == .acknowledged)
            #expect(answers.last == refused)
            #expect(!fixture.service.isStoring)
            #expect(fixture.log.count("the spool can't be written to; notifications are answered 503") == 1)
            let metrics = fixture.metrics
            #expect(metrics.spoolWritable.value == 0 && metrics.spoolLimit.value == 2_000)
            try await role.letIn()
            await fixture.until { $0.service.storage == .database && $0.service.spoolBytes == 0 }
            await fixture.until { $0.metrics.spoolWritable.value == 1 }
            #expect(await fixture.client.answer(try fixture.body(id: "after")) == .acknowledged)
            let acknowledged = answers.count { $0 == .acknowledged }
            #expect(
                try await fixture.texts("SELECT count(*)::text FROM siwa.notifications") == ["\(acknowledged + 1)"]
            )
        }
    }

    @Test("A torn file is set aside, counted and logged; all others are stored.")
    func torn() async throws {
        try await withSpool { fixture, role, directory in
            try await role.shutOut()
            for index in 0..<3 {
                #expect(await fixture.client.answer(try fixture.body(id: "\(index)")) == .acknowledged)
            }
            let name = try directory.spoolFiles[1]
            try directory.write(Array(try directory.content(name).dropLast(5)), to: name)
            try await role.letIn()
            await fixture.until { $0.service.spoolBytes == 0 }
            #expect(try await fixture.texts("SELECT jti FROM siwa.notifications ORDER BY jti") == ["0", "2"])
            #expect(try directory.spoolFiles == [name + ".corrupt"])
            #expect(
                fixture.metrics.registry.prometheusText()
                    .contains(#"siwad_spool_files_set_aside_total{reason="torn"} 1"#)
            )
            #expect(fixture.log.count("a file in the spool directory was set aside") == 1)
        }
    }

    @Test(
        "A full disk is noticed at the start, while PostgreSQL is available.",
        .enabled(if: TemporaryDirectory.canMount, "needs root, to mount a small file system")
    )
    func fullDiskAtStart() async throws {
        try await TestDatabase.with(.siwa) { database in
            let disk = try TemporaryDirectory(capacity: 64 * 1_024)
            let spool = try Spool(directory: disk.file("spool"), limit: 1 << 30)
            try disk.write([UInt8](repeating: 1, count: 60 * 1_024), to: "filler")
            try await IngestFixture.with(database, database.settings, spool: spool) { fixture in
                await fixture.until { $0.log.count("PostgreSQL takes all notifications until it can") == 1 }
                await fixture.until { $0.service.storage == .database }
                #expect(fixture.log.count("notifications are answered 503") == 0)
                let body = try fixture.body(id: "stored")
                #expect(await fixture.client.answer(body) == .acknowledged)
            }
        }
    }

    @Test(
        "On a full disk nothing is acknowledged; when there is room, everything is, without a restart.",
        .enabled(if: TemporaryDirectory.canMount, "needs root, to mount a small file system")
    )
    func fullDisk() async throws {
        try await TestDatabase.with(.siwa) { database in
            try await DaemonRole.with(database) { role in
                let disk = try TemporaryDirectory(capacity: 64 * 1_024)
                let spool = try Spool(directory: disk.file("spool"), limit: 1 << 30)
                try await IngestFixture.with(database, role.settings, spool: spool) { fixture in
                    await fixture.until { $0.service.storage == .database }
                    try await role.shutOut()
                    // To the last page: where there is room for one notification, one is rightly taken.
                    // The mark of the spool has a page.
                    try disk.write([UInt8](repeating: 1, count: 60 * 1_024), to: "filler")
                    let bodies = try (0..<50).map { try fixture.body(id: "lost\($0)") }
                    let refused = IngestResponse.unavailable(.databaseUnavailable, retryAfterSeconds: 5)
                    #expect(await fixture.client.answers(bodies).allSatisfy { $0 == refused })
                    await fixture.until { !$0.service.isStoring }
                    #expect(fixture.log.count("No space left on device; make room there") == 1)
                    try disk.write([], to: "filler")
                    // By itself: a daemon that isn't ready is sent nothing.
                    await fixture.until { $0.service.storage == .spool }
                    #expect(await fixture.client.answer(try fixture.body(id: "kept")) == .acknowledged)
                    try await role.letIn()
                    await fixture.until { $0.service.spoolBytes == 0 }
                    let kept = try await fixture.texts("SELECT jti FROM siwa.notifications WHERE jti = 'kept'")
                    #expect(kept == ["kept"])
                }
            }
        }
    }
}
