import AppleSimulator
import Ingest
import Telemetry
import Testing

@Suite("Group commit")
struct GroupCommitTests {
    /// Has statements that insert such rows wait while they are executed, until commits are let go on.
    private func stallInserts(
        into table: String,
        when condition: String = "true",
        _ fixture: IngestFixture
    ) async throws {
        try await fixture.run(
            """
            CREATE FUNCTION public.wait_for_test() RETURNS trigger LANGUAGE plpgsql AS $$
            BEGIN PERFORM pg_advisory_xact_lock(4711); RETURN NULL; END $$;
            CREATE TRIGGER wait_for_test AFTER INSERT ON \(table)
                FOR EACH ROW WHEN (\(condition)) EXECUTE FUNCTION public.wait_for_test();
            SELECT pg_advisory_lock(4711);
            """
        )
    }

    @Test("A request is acknowledged after the commit and never before.")
    func acknowledgedAfterCommit() async throws {
        try await IngestFixture.with { fixture in
            await fixture.untilStoring()
            try await fixture.stallCommits()
            let body = try fixture.body(id: "a")
            async let answer = fixture.client.answer(body)
            try await fixture.untilStalled()
            // The statement is done, only its commit is missing: nothing is visible, and no request was answered.
            #expect(await fixture.client.pending == 1)
            #expect(try await fixture.texts("SELECT jti FROM siwa.notifications").isEmpty)
            try await fixture.letCommit()
            #expect(await answer == .acknowledged)
            #expect(try await fixture.texts("SELECT jti FROM siwa.notifications") == ["a"])
        }
    }

    @Test("Notifications that arrive during a commit are stored by one statement, up to the batch limit.")
    func oneStatement() async throws {
        try await IngestFixture.with { fixture in
            await fixture.untilStoring()
            try await fixture.stallCommits()
            try await fixture.run(
                """
                CREATE TABLE public.statements (at timestamptz);
                CREATE FUNCTION public.count_statement() RETURNS trigger LANGUAGE plpgsql AS $$
                BEGIN INSERT INTO public.statements VALUES (clock_timestamp()); RETURN NULL; END $$;
                CREATE TRIGGER count_statement AFTER INSERT ON siwa.notifications
                    FOR EACH STATEMENT EXECUTE FUNCTION public.count_statement();
                """
            )
            let first = try fixture.body(sub: "first")
            async let firstAnswer = fixture.client.answer(first)
            try await fixture.untilStalled()
            let bodies = try (0..<256).map { try fixture.body(sub: "person\($0)") }
            async let answers = fixture.client.answers(bodies)
            while fixture.service.queueDepth < 256 { await Task.yield() }
            try await fixture.letCommit()
            #expect(await firstAnswer == .acknowledged)
            #expect(await answers.allSatisfy { $0 == .acknowledged })
            #expect(try await fixture.texts("SELECT count(*)::text FROM public.statements") == ["2"])
            let transactions = try await fixture.texts(
                "SELECT count(*)::text FROM siwa.notifications GROUP BY xmin::text ORDER BY count(*)"
            )
            #expect(transactions == ["1", "256"])
        }
    }

    @Test("A notification whose data PostgreSQL refuses becomes a dead letter; the rest of its batch is recorded.")
    func poison() async throws {
        try await IngestFixture.with { fixture in
            await fixture.untilStoring()
            try await fixture.run("ALTER TABLE siwa.accounts ADD CONSTRAINT no_poison CHECK (sub <> 'person7')")
            let bodies = try (0..<20).map { try fixture.body(sub: "person\($0)") }
            let answers = await fixture.client.answers(bodies)
            #expect(answers.allSatisfy { $0 == .acknowledged })
            #expect(try await fixture.texts("SELECT count(*)::text FROM siwa.notifications") == ["19"])
            let letters = try await fixture.texts(
                "SELECT reason || ' ' || sub || ' ' || detail FROM siwa.dead_letters"
            )
            #expect(
                letters == [
                    "store-rejected person7 "
                        + "PostgreSQL refused it (SQLSTATE 23514, constraint no_poison of siwa.accounts)."
                ]
            )
        }
    }

    @Test(
        "A batch that is sent while another one commits loses no notification if one of them is refused.",
        arguments: [0, 5]
    )
    func poisonInTurn(_ strangers: Int) async throws {
        try await IngestFixture.with { fixture in
            await fixture.untilStoring()
            // The first statement waits while it is executed, so that the others are there when it is done.
            try await fixture.run("ALTER TABLE siwa.accounts ADD CONSTRAINT no_poison CHECK (sub <> 'person7')")
            try await stallInserts(into: "siwa.accounts", when: "NEW.sub = 'first'", fixture)
            let first = try fixture.body(sub: "first")
            async let firstAnswer = fixture.client.answer(first)
            try await fixture.untilStalled()
            let bodies =
                try (0..<20).map { try fixture.body(sub: "person\($0)") }
                + (0..<strangers).map { try fixture.body(sub: "person\($0)", app: "com.example.added") }
            async let answers = fixture.client.answers(bodies)
            while fixture.service.queueDepth < bodies.count { await Task.yield() }
            try await fixture.letCommit()
            #expect(await firstAnswer == .acknowledged)
            #expect(await answers.allSatisfy { $0 == .acknowledged })
            #expect(try await fixture.texts("SELECT count(*)::text FROM siwa.notifications") == ["20"])
            let letters = try await fixture.texts("SELECT reason FROM siwa.dead_letters ORDER BY 1")
            #expect(letters == ["store-rejected"] + Array(repeating: "unknown-audience", count: strangers))
        }
    }

    @Test("A duplicate in a large batch changes nothing for the others, which are stored in one attempt.")
    func duplicateAmongMany() async throws {
        try await IngestFixture.with { fixture in
            await fixture.untilStoring()
            try await fixture.run(
                """
                CREATE SEQUENCE public.attempts;
                CREATE FUNCTION public.count_attempt() RETURNS trigger LANGUAGE plpgsql AS $$
                BEGIN PERFORM nextval('public.attempts'); RETURN NEW; END $$;
                CREATE TRIGGER count_attempt BEFORE INSERT ON siwa.notifications
                    FOR EACH ROW EXECUTE FUNCTION public.count_attempt();
                """
            )
            // The writer waits for a dead letter, so that it then takes all others together.
            try await stallInserts(into: "siwa.dead_letters", fixture)
            let known = try fixture.body(sub: "person7", id: "known")
            #expect(await fixture.client.answer(known) == .acknowledged)
            let stranger = try fixture.body(app: "com.example.added")
            async let strangerAnswer = fixture.client.answer(stranger)
            try await fixture.untilStalled()
            let bodies = try (0..<20).map { $0 == 7 ? known : try fixture.body(sub: "person\($0)") }
            async let answers = fixture.client.answers(bodies)
            while fixture.service.queueDepth < bodies.count { await Task.yield() }
            try await fixture.letCommit()
            #expect(await strangerAnswer == .acknowledged)
            #expect(await answers.allSatisfy { $0 == .acknowledged })
            #expect(try await fixture.texts("SELECT count(DISTINCT jti)::text FROM siwa.notifications") == ["20"])
            #expect(try await fixture.texts("SELECT count(*)::text FROM siwa.account_changes") == ["20"])
            #expect(try await fixture.texts("SELECT last_value::text FROM public.attempts") == ["21"])
            // The counting follows the answer; another answer follows the counting.
            _ = await fixture.client.answer(try fixture.body(id: "b"))
            let text = fixture.metrics.registry.prometheusText()
            #expect(text.contains(#"siwad_notifications_total{event_type="email-disabled",outcome="duplicate"} 1"#))
        }
    }

    @Test("A full queue is answered 503 immediately, and accepted notifications are still stored.")
    func fullQueue() async throws {
        var limits = IngestService.Limits()
        limits.queue = 2
        try await IngestFixture.with(limits: limits) { fixture in
            await fixture.untilStoring()
            try await fixture.stallCommits()
            let first = try fixture.body(sub: "first")
            async let firstAnswer = fixture.client.answer(first)
            try await fixture.untilStalled()
            let bodies = try (0..<2).map { try fixture.body(sub: "person\($0)") }
            async let answers = fixture.client.answers(bodies)
            while fixture.service.queueDepth < 2 { await Task.yield() }
            let refused = await fixture.client.answer(try fixture.body(sub: "late"))
            #expect(refused == .unavailable(.queueFull, retryAfterSeconds: 1))
            try await fixture.letCommit()
            #expect(await firstAnswer == .acknowledged)
            #expect(await answers == [.acknowledged, .acknowledged])
        }
    }

    @Test("Requests above the limit of bytes are answered 503, and accepted notifications are stored.")
    func fullMemory() async throws {
        var limits = IngestService.Limits()
        // Two requests of less than 7 KiB fit.
        limits.queueBytes = 15_000
        try await IngestFixture.with(limits: limits) { fixture in
            await fixture.untilStoring()
            try await fixture.stallCommits()
            let first = try fixture.body(sub: "first")
            async let firstAnswer = fixture.client.answer(first)
            try await fixture.untilStalled()
            let second = try fixture.body(sub: "second")
            async let secondAnswer = fixture.client.answer(second)
            while fixture.service.queueDepth < 1 { await Task.yield() }
            let refused = await fixture.client.answer(try fixture.body(sub: "late"))
            #expect(refused == .unavailable(.queueFull, retryAfterSeconds: 1))
            try await fixture.letCommit()
            #expect(await firstAnswer == .acknowledged)
            #expect(await secondAnswer == .acknowledged)
            #expect(await fixture.client.answer(try fixture.body(sub: "late")) == .acknowledged)
        }
    }

    @Test("While PostgreSQL can't be reached, requests are answered 503.")
    func databaseAway() async throws {
        try await IngestFixture.with(conninfo: "host=/nonexistent dbname=none") { fixture in
            let answer = await fixture.client.answer(try fixture.body())
            #expect(answer == .unavailable(.databaseUnavailable, retryAfterSeconds: 5))
        }
    }

    @Test("A connection that the server closed is replaced, and the batch that was sent on it is stored.")
    func brokenConnection() async throws {
        try await IngestFixture.with { fixture in
            await fixture.untilStoring()
            #expect(await fixture.client.answer(try fixture.body(id: "a")) == .acknowledged)
            try await fixture.run(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                    + " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
            #expect(await fixture.client.answer(try fixture.body(id: "b")) == .acknowledged)
            #expect(try await fixture.texts("SELECT jti FROM siwa.notifications ORDER BY jti") == ["a", "b"])
        }
    }

    @Test("At shutdown no request is accepted, and accepted notifications are stored and answered.")
    func drain() async throws {
        try await IngestFixture.with { fixture in
            await fixture.untilStoring()
            try await fixture.stallCommits()
            let first = try fixture.body(id: "a")
            async let answer = fixture.client.answer(first)
            try await fixture.untilStalled()
            fixture.service.close()
            let late = await fixture.client.answer(try fixture.body(id: "b"))
            #expect(late == .unavailable(.shuttingDown, retryAfterSeconds: 5))
            try await fixture.letCommit()
            #expect(await answer == .acknowledged)
        }
    }

    @Test("A durable notification is counted by its type and outcome, including duplicates.")
    func metrics() async throws {
        try await IngestFixture.with { fixture in
            await fixture.untilStoring()
            let body = try fixture.body("consent-revoked", id: "a")
            _ = await fixture.client.answer(body)
            _ = await fixture.client.answer(body)
            // The counting follows the answer; a third answer follows the counting of the second.
            _ = await fixture.client.answer(try fixture.body(id: "b"))
            let text = fixture.metrics.registry.prometheusText()
            #expect(text.contains(#"siwad_notifications_total{event_type="consent-revoked",outcome="applied"} 1"#))
            #expect(text.contains(#"siwad_notifications_total{event_type="consent-revoked",outcome="duplicate"} 1"#))
        }
    }
}
