import AccountStore
import AppleTokens
import AppleSimulator
import Basics
import Postgres
import StoreTestSupport
import Synchronization
import TestSupport
import Testing

@testable import Ingest

@Suite("Replaying dead letters")
struct DeadLetterReplayTests {
    static let apps: AudienceMap = {
        do {
            return try AudienceMap(parsing: "AAAAAAAAAA/com.example.one,CCCCCCCCCC/com.example.added")
        } catch {
            preconditionFailure("\(error)")
        }
    }()

    /// An service with letters of so many people for an app that isn't configured yet.
    private func with(_ count: Int, _ body: (IngestFixture) async throws -> Void) async throws {
        try await IngestFixture.with { fixture in
            await fixture.untilStoring()
            let bodies = try (0..<count).map {
                try fixture.body("email-disabled", sub: "person\($0)", app: "com.example.added", id: "id\($0)")
            }
            _ = await fixture.client.answers(bodies)
            #expect(try await fixture.open() == count)
            try await body(fixture)
        }
    }

    @Test("A dry run reports the result for each letter, and changes nothing.")
    func rehearsal() async throws {
        try await with(20) { fixture in
            let before = try await fixture.everything()
            var results: [ReplayResult] = []
            let report = try await fixture.replay(
                apps: Self.apps,
                isRehearsal: true,
                batch: 3,
                onProgress: { some, _ in results += some }
            )
            #expect(report?.lines == ["20 unknown-audience → applied"])
            #expect(results.map(\.end) == Array(repeating: .replayed(.applied), count: 20))
            #expect(try await fixture.everything() == before)
            #expect(try await fixture.replay(isRehearsal: true)?.lines == ["20 unknown-audience → unknown-audience"])
            #expect(try await fixture.everything() == before)
        }
    }

    @Test("In a dry run, each letter finds the effects of earlier letters about the same person.")
    func rehearsedTogether() async throws {
        try await IngestFixture.with { fixture in
            await fixture.untilStoring()
            for number in 0..<40 {
                let body = try fixture.body("account-deleted", sub: "person\(number % 2)", app: "com.example.added")
                #expect(await fixture.client.answer(body) == .acknowledged)
            }
            let expected = ["2 unknown-audience → applied", "38 unknown-audience → unchanged"]
            #expect(try await fixture.replay(apps: Self.apps, isRehearsal: true, batch: 1)?.lines == expected)
            #expect(try await fixture.replay(apps: Self.apps, batch: 1)?.lines == expected)
        }
    }

    @Test("A letter that PostgreSQL refuses stays open with the cause, and the other letters are replayed.")
    func poison() async throws {
        try await with(40) { fixture in
            try await fixture.run("ALTER TABLE siwa.accounts ADD CONSTRAINT no_17 CHECK (sub <> 'person17')")
            let report = try await fixture.replay(apps: Self.apps)
            #expect(report?.lines == ["1 unknown-audience → store-rejected", "39 unknown-audience → applied"])
            #expect(report?.details.values.contains { $0.contains("no_17") } == true)
            #expect(try await fixture.texts("SELECT sub FROM siwa.dead_letters WHERE status = 'open'") == ["person17"])
            #expect(try await fixture.texts("SELECT count(*)::text FROM siwa.accounts") == ["39"])
            #expect(try await fixture.texts(Self.audited) == ["39"])
        }
    }

    @Test(
        "A deferred constraint that refuses a letter is reported like any other, also in a dry run.",
        arguments: [true, false]
    )
    func deferredPoison(_ isRehearsal: Bool) async throws {
        try await with(40) { fixture in
            try await fixture.run(
                """
                CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS $$
                BEGIN
                    IF NEW.sub = 'person17' THEN
                        RAISE EXCEPTION 'no' USING ERRCODE = 'check_violation', CONSTRAINT = 'late';
                    END IF;
                    RETURN NULL;
                END $$;
                CREATE CONSTRAINT TRIGGER late AFTER INSERT ON siwa.accounts
                    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION public.refuse()
                """
            )
            let report = try await fixture.replay(apps: Self.apps, isRehearsal: isRehearsal)
            #expect(report?.lines == ["1 unknown-audience → store-rejected", "39 unknown-audience → applied"])
            guard !isRehearsal else { return }
            #expect(try await fixture.texts("SELECT sub FROM siwa.dead_letters WHERE status = 'open'") == ["person17"])
            #expect(try await fixture.texts("SELECT count(*)::text FROM siwa.accounts") == ["39"])
        }
    }

    @Test(
        "At no time are more letters replayed than the rate allows, except for one batch."
    )
    func rate() async throws {
        try await with(30) { fixture in
            let rate = 40.0
            let start = ContinuousClock.now
            var steps: [(done: Int, after: Duration)] = []
            let report = try await fixture.replay(
                apps: Self.apps,
                rate: rate,
                onProgress: { _, report in steps.append((report.replayed + report.dead, .now - start)) }
            )
            #expect(report?.replayed == 30)
            // Each part waits until the time of the one before is used up.
            for (step, before) in zip(steps.dropFirst(), steps) where before.done > 0 {
                #expect(step.after >= .seconds(Double(before.done) / rate), "\(steps)")
            }
            #expect(steps.count > 2, "it goes in small steps: \(steps)")
            #expect(.now - start >= .seconds(30 / rate))
        }
    }

    @Test("A letter that fails again is tried once by each run, counts the attempt, and keeps its earlier details.")
    func failsAgain() async throws {
        try await with(5) { fixture in
            for _ in 0..<2 { #expect(try await fixture.replay(batch: 2)?.dead == 5) }
            let attempts = try await fixture.texts("SELECT DISTINCT attempts::text FROM siwa.dead_letters")
            #expect(attempts == ["3"])
            let earlier = try await fixture.texts(
                "SELECT attempt || coalesce(operator, ' at receipt') FROM siwa.dead_letter_attempts WHERE letter_id = "
                    + "(SELECT min(id) FROM siwa.dead_letters) ORDER BY attempt"
            )
            #expect(earlier == ["1 at receipt", "2kim"])
        }
    }

    @Test("A letter whose notification is already recorded is replayed as a duplicate.")
    func duplicate() async throws {
        try await with(1) { fixture in
            let body = try fixture.body("email-disabled", sub: "person0", id: "id0")
            #expect(await fixture.client.answer(body) == .acknowledged)
            #expect(try await fixture.replay(apps: Self.apps)?.lines == ["1 unknown-audience → duplicate"])
            #expect(try await fixture.letter().letter.outcome == "duplicate")
            #expect(try await fixture.texts("SELECT source FROM siwa.notifications") == ["endpoint"])
        }
    }

    @Test("An old event doesn't end newer sessions.")
    func superseded() async throws {
        try await IngestFixture.with { fixture in
            await fixture.untilStoring()
            let issued = WallTime.now() - .seconds(2 * 86_400)
            #expect(await fixture.client.answer(try fixture.body(issuedAt: issued)) == .acknowledged)
            try await fixture.openSession(at: .now() - .seconds(60))
            #expect(try await fixture.replay(acceptsExpired: true)?.lines == ["1 expired → superseded"])
            #expect(try await fixture.isLive())
        }
    }

    @Test("Two simultaneous runs replay each letter once.")
    func concurrently() async throws {
        try await with(600) { fixture in
            let reports = try await withThrowingTaskGroup(of: ReplayReport?.self) { group in
                for _ in 0..<2 { group.addTask { try await fixture.replay(apps: Self.apps, batch: 20) } }
                return try await group.reduce(into: []) { $0.append($1) }.compactMap { $0 }
            }
            #expect(reports.reduce(0) { $0 + $1.replayed } == 600)
            #expect(try await fixture.open() == 0)
            #expect(try await fixture.texts("SELECT count(*)::text FROM siwa.notifications") == ["600"])
            #expect(try await fixture.texts("SELECT count(*)::text FROM siwa.account_history") == ["600"])
            let attempts = try await fixture.texts("SELECT DISTINCT attempts::text FROM siwa.dead_letters")
            #expect(attempts == ["2"])
            #expect(try await fixture.texts(Self.audited) == ["600"])
        }
    }

    @Test("An interrupted run leaves whole batches; the next run replays the others. The audit counts what was done.")
    func interrupted() async throws {
        try await with(50) { fixture in
            let run = Mutex<Task<Void, any Error>?>(nil)
            let task = Task {
                _ = try await fixture.replay(
                    apps: Self.apps,
                    batch: 10,
                    onProgress: { results, report in
                        if report.replayed == 30, !results.isEmpty { run.withLock { $0?.cancel() } }
                    }
                )
            }
            run.withLock { $0 = task }
            await #expect(throws: (any Error).self) { try await task.value }
            let left = try await fixture.open()
            #expect(left % 10 == 0 && left > 0)
            #expect(try await fixture.texts("SELECT count(*)::text FROM siwa.notifications") == ["\(50 - left)"])
            #expect(try await fixture.texts(Self.audited) == ["\(50 - left)"])
            #expect(try await fixture.replay(apps: Self.apps)?.replayed == left)
            #expect(try await fixture.texts("SELECT count(*)::text FROM siwa.account_history") == ["50"])
            #expect(try await fixture.texts(Self.audited) == ["50"])
        }
    }

    /// The number of letters that were replayed according to the audit.
    private static let audited = "SELECT sum(affected)::text FROM siwa.operator_actions"

    @Test("Each batch is in the audit with its filter, its note and the number of letters that were replayed.")
    func audit() async throws {
        try await with(3) { fixture in
            let filter = DeadLetterFilter(reason: .unknownAudience, app: "com.example.added")
            try await fixture.replay(filter, apps: Self.apps)
            #expect(try await fixture.replay(filter, apps: Self.apps) == nil)
            let audit = try await fixture.texts(
                "SELECT concat_ws('|', operator, action, target, note, affected) FROM siwa.operator_actions"
            )
            #expect(
                audit == [
                    "kim|dead-letters replay|--reason unknown-audience --app com.example.added|ticket 7|3"
                ]
            )
        }
    }

    @Test("If a run has more numbers than fit a batch, the entry of each batch has the numbers of its letters.")
    func auditOfNumbers() async throws {
        try await with(5) { fixture in
            let ids = try await fixture.texts("SELECT id::text FROM siwa.dead_letters ORDER BY id")
            let filter = DeadLetterFilter(ids: ids.compactMap { Int64($0) })
            try await fixture.replay(filter, apps: Self.apps, batch: 2)
            let audit = try await fixture.texts(
                "SELECT target || ' ' || affected FROM siwa.operator_actions ORDER BY action_id"
            )
            let batches = [ids[0..<2], ids[2..<4], ids[4..<5]]
            #expect(audit == batches.map { some in some.map { "--id \($0) " }.joined() + "\(some.count)" })
        }
    }

    @Test("A letter that PostgreSQL can't store at present stays as it is, and the others are replayed.")
    func heldUp() async throws {
        try await with(20) { fixture in
            try await fixture.refusePeople("NEW.sub = 'person7'")
            let row = "SELECT d::text FROM siwa.dead_letters AS d WHERE status = 'open'"
            let before = try await fixture.texts(row + " AND sub = 'person7'")
            let expected = ["1 unknown-audience → unknown-audience", "19 unknown-audience → applied"]
            #expect(try await fixture.replay(apps: Self.apps, isRehearsal: true)?.lines == expected)
            let report = try await fixture.replay(apps: Self.apps)
            #expect(report?.lines == expected)
            let detail = "PostgreSQL can't store it at present (SQLSTATE P0001)."
            #expect(report?.details.values.contains(detail) == true)
            #expect(try await fixture.texts(row) == before)
            // Alone too; nothing was changed, so there is no entry in the audit.
            #expect(try await fixture.replay(apps: Self.apps)?.lines == [expected[0]])
            #expect(try await fixture.texts("SELECT affected::text FROM siwa.operator_actions") == ["19"])
            try await fixture.run("DROP TRIGGER refuse ON siwa.accounts")
            #expect(try await fixture.replay(apps: Self.apps)?.lines == ["1 unknown-audience → applied"])
        }
    }

    @Test("A batch of which PostgreSQL can store nothing at present does not end the run.")
    func heldUpBatch() async throws {
        try await with(20) { fixture in
            try await fixture.refusePeople("NEW.sub IN ('person0', 'person1', 'person18', 'person19')")
            let report = try await fixture.replay(apps: Self.apps, batch: 2)
            #expect(report?.lines == ["16 unknown-audience → applied", "4 unknown-audience → unknown-audience"])
        }
    }

    @Test("A letter about a person whose row is locked delays no other.")
    func locked() async throws {
        try await with(20) { fixture in
            try await fixture.run("INSERT INTO siwa.accounts (team_id, sub) VALUES ('CCCCCCCCCC', 'person7')")
            try await fixture.database.withOpenTransaction { session throws(PostgresError) in
                // It waits for the end of the test itself, which may take longer than a lock is waited for.
                try session.execute(script: "SET LOCAL lock_timeout = 0")
                try session.execute(script: "SELECT FROM siwa.accounts WHERE sub = 'person7' FOR UPDATE")
            } _: {
                let report = try await fixture.replay(apps: Self.apps, lockTimeout: .milliseconds(100))
                #expect(
                    report?.lines == ["1 unknown-audience → unknown-audience", "19 unknown-audience → applied"]
                )
            }
            #expect(try await fixture.replay(apps: Self.apps)?.lines == ["1 unknown-audience → applied"])
        }
    }

    @Test("If PostgreSQL can store none of several letters, the run fails and changes nothing.")
    func nothingStored() async throws {
        try await with(3) { fixture in
            try await fixture.refusePeople()
            let before = try await fixture.everything()
            let error = await #expect(throws: PostgresError.self) { try await fixture.replay(apps: Self.apps) }
            #expect(error?.sqlState?.rawValue == "P0001")
            // The last one is alone in its batch.
            await #expect(throws: PostgresError.self) { try await fixture.replay(apps: Self.apps, batch: 2) }
            await #expect(throws: PostgresError.self) {
                try await fixture.replay(apps: Self.apps, isRehearsal: true, batch: 2)
            }
            #expect(try await fixture.everything() == before)
        }
    }

    /// Gives the only letter a notification of that time.
    private func age(_ issued: WallTime, _ fixture: IngestFixture) async throws {
        let event = SimulatedEvent(
            type: "account-delete",
            sub: "person0",
            app: "com.example.added",
            eventTime: issued.wholeMilliseconds,
            issuedAt: issued.wholeSeconds
        )
        let token = try fixture.apple.token(for: event)
        try await fixture.run(
            "UPDATE siwa.dead_letters SET received_at = '\(issued)', body = convert_to('\(token)', 'UTF8')"
        )
    }

    @Test("An old letter gets a partition if the retention keeps its month.")
    func oldMonth() async throws {
        try await with(1) { fixture in
            try await age(WallTime(seconds: 1_600_000_000), fixture)
            let report = try await fixture.replay(apps: Self.apps, retention: .seconds(36_500 * 86_400))
            #expect(report?.lines == ["1 unknown-audience → applied"])
        }
    }

    @Test("A letter whose month was detached stays as it is, and is replayed when the month is there again.")
    func detachedMonth() async throws {
        try await with(1) { fixture in
            try await age(WallTime(seconds: 1_600_000_000), fixture)
            // The newest partition is the one of that month.
            try await fixture.run(
                """
                SELECT siwa.ensure_notification_partitions(to_timestamp(1600000000), to_timestamp(1600000000));
                DO $$ BEGIN
                    EXECUTE (
                        SELECT 'ALTER TABLE siwa.notifications DETACH PARTITION ' || i.inhrelid::regclass
                        FROM pg_inherits AS i WHERE i.inhparent = 'siwa.notifications'::regclass
                        ORDER BY i.inhrelid DESC LIMIT 1
                    );
                END $$
                """
            )
            let retention = Duration.seconds(36_500 * 86_400)
            let report = try await fixture.replay(apps: Self.apps, retention: retention)
            #expect(report?.lines == ["1 unknown-audience → unknown-audience"])
            #expect(
                report?.details.values.contains { $0.contains("can't store it at present (SQLSTATE 55000") } == true
            )
            let letter = "SELECT concat_ws(' ', status, reason, attempts, last_failed_at) FROM siwa.dead_letters"
            #expect(try await fixture.texts(letter) == ["open unknown-audience 1"])
        }
    }

    @Test("A replay does not create a partition that the retention drops; the letter stays open with the reason.")
    func droppedMonth() async throws {
        try await with(1) { fixture in
            let partitions =
                "SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = 'siwa.notifications'::regclass"
            let before = try await fixture.texts(partitions)
            try await age(.now() - .seconds(401 * 86_400), fixture)
            for isRehearsal in [true, false] {
                let report = try await fixture.replay(apps: Self.apps, isRehearsal: isRehearsal)
                #expect(report?.lines == ["1 unknown-audience → unknown-audience"])
                #expect(report?.details.values.contains { $0.contains("SIWAD_RETENTION") } == true)
            }
            #expect(try await fixture.texts(partitions) == before)
            #expect(try await fixture.texts("SELECT sub FROM siwa.accounts").isEmpty)
            #expect(try await fixture.texts("SELECT status FROM siwa.dead_letters") == ["open"])
        }
    }

    @Test("A rate limits the size of the batches.")
    func rate() {
        #expect(ReplayRun(DeadLetterFilter(), by: "kim", note: "").pacedBatch == 256)
        #expect(ReplayRun(DeadLetterFilter(), by: "kim", note: "", rate: 100).pacedBatch == 25)
        #expect(ReplayRun(DeadLetterFilter(), by: "kim", note: "", rate: 0.5).pacedBatch == 1)
        #expect(ReplayRun(DeadLetterFilter(), by: "kim", note: "", rate: 1e12).pacedBatch == 256)
    }
}

extension IngestFixture {
    fileprivate func open() async throws -> Int {
        let counts = try await connection.withSession { session throws(PostgresError) in
            try DeadLetters.countOpen(in: session)
        }
        return counts.values.reduce(0, +)
    }

    /// Makes PostgreSQL refuse new people for whom this condition on the row `NEW` holds.
    fileprivate func refusePeople(_ condition: String = "true") async throws {
        try await run(
            """
            CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS $$
            BEGIN
                RAISE EXCEPTION 'not today';
            END $$;
            CREATE TRIGGER refuse BEFORE INSERT ON siwa.accounts FOR EACH ROW
                WHEN (\(condition)) EXECUTE FUNCTION public.refuse()
            """
        )
    }

    /// Every row that a replay may touch.
    fileprivate func everything() async throws -> [String] {
        try await texts(
            """
            SELECT d::text FROM siwa.dead_letters AS d UNION ALL SELECT n::text FROM siwa.notifications AS n
            UNION ALL SELECT a::text FROM siwa.accounts AS a UNION ALL SELECT c::text FROM siwa.consents AS c
            UNION ALL SELECT h::text FROM siwa.account_changes AS h
            UNION ALL SELECT o::text FROM siwa.operator_actions AS o
            UNION ALL SELECT p::text FROM siwa.dead_letter_attempts AS p
            ORDER BY 1
            """
        )
    }
}
