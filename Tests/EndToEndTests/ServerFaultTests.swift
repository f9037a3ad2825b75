import AppleSimulator
import Testing

@Suite("Errors of the PostgreSQL server", .timeLimit(.minutes(10)))
struct ServerFaultTests {
    /// Expects 503 during the fault, no dead letter, and a stored notification afterwards.
    private func expectPatience(
        _ fixture: DaemonFixture,
        _ addresses: DaemonProcess.Addresses,
        until relief: () async throws -> Void,
        sourceLocation: SourceLocation = #_sourceLocation
    ) async throws {
        let body = try fixture.body(fixture.event("consent-revoked", id: "patient"))
        for _ in 0..<3 {
            let response = try await Web.post(body, to: addresses.notifications)
            #expect(response.status == 503, "\(response)", sourceLocation: sourceLocation)
            #expect((response.retryAfter ?? 0) > 0, sourceLocation: sourceLocation)
        }
        let isUntouched = try await fixture.isUntouched()
        #expect(isUntouched, "a fault of ours is not the notification's", sourceLocation: sourceLocation)
        try await relief()
        try await eventually("the server to be used again") {
            try await Web.post(body, to: addresses.notifications).status == 200
        }
        let kept = try await fixture.texts("SELECT jti || ' ' || outcome FROM siwa.notifications")
        #expect(kept == ["patient applied"], sourceLocation: sourceLocation)
        let letters = try await fixture.texts("SELECT reason FROM siwa.dead_letters")
        #expect(letters.isEmpty, sourceLocation: sourceLocation)
    }

    /// Errors that a server reports during a statement (PostgreSQL, Appendix A).
    static let faults = [
        "53100 disk_full", "53200 out_of_memory", "53400 configuration_limit_exceeded", "54000 program_limit_exceeded",
        "55P03 lock_not_available", "57014 query_canceled", "57P01 admin_shutdown", "57P02 crash_shutdown",
        "57P03 cannot_connect_now", "58030 io_error", "58P01 undefined_file", "40001 serialization_failure",
        "40P01 deadlock_detected", "25006 read_only_sql_transaction", "42501 insufficient_privilege",
        "42703 undefined_column", "XX000 internal_error", "XX001 data_corrupted", "P0001 raise_exception",
    ]

    @Test("During a fault of the server nothing is lost, and nothing becomes a dead letter.", arguments: faults)
    func fault(name: String) async throws {
        let code = name.prefix(5)
        try await DaemonFixture.withDaemon { fixture, _, addresses in
            try await fixture.run(
                """
                CREATE FUNCTION public.fail() RETURNS trigger LANGUAGE plpgsql AS $$
                BEGIN RAISE EXCEPTION 'simulated' USING ERRCODE = '\(code)'; END $$;
                CREATE TRIGGER fail BEFORE INSERT ON siwa.accounts EXECUTE FUNCTION public.fail();
                """
            )
            try await expectPatience(fixture, addresses) { try await fixture.run("DROP TRIGGER fail ON siwa.accounts") }
        }
    }

    @Test("After a refusal, the log says that PostgreSQL can be written to again once it has stored something.")
    func recovery() async throws {
        try await DaemonFixture.withDaemon { fixture, daemon, addresses in
            // As with a full disk, only a row is refused: connections are made, and statements without rows succeed.
            try await fixture.run(
                """
                CREATE FUNCTION public.fail() RETURNS trigger LANGUAGE plpgsql AS $$
                BEGIN RAISE EXCEPTION 'simulated' USING ERRCODE = '53100'; END $$;
                CREATE TRIGGER fail BEFORE INSERT ON siwa.accounts FOR EACH ROW EXECUTE FUNCTION public.fail();
                """
            )
            func lines(_ text: String) -> Int { daemon.log.count { $0.contains(text) } }
            for count in 1...2 {
                let response = try await Web.post(fixture.body(fixture.event()), to: addresses.notifications)
                #expect(response.status == 503)
                try await eventually("connection \(count) after the first") {
                    try await MetricSamples(addresses)["siwad_database_up"] == 1
                }
            }
            try await fixture.run("DROP TRIGGER fail ON siwa.accounts")
            try await eventually("a notification to be stored") {
                try await Web.post(fixture.body(fixture.event()), to: addresses.notifications).status == 200
            }
            try await eventually("the recovery") { lines("PostgreSQL can be written to again") > 0 }
            // Neither line for each refusal.
            #expect(lines("PostgreSQL can't be written to") == 1)
            #expect(lines("PostgreSQL can be written to again") == 1)
        }
    }

    @Test(
        "While the server is read-only, as after a failover, nothing is lost, and nothing becomes a dead letter."
    )
    func readOnly() async throws {
        try await DaemonFixture.withDaemon { fixture, _, addresses in
            try await fixture.alterDatabase("SET default_transaction_read_only = on")
            try await fixture.endOtherConnections()
            try await expectPatience(fixture, addresses) {
                try await fixture.alterDatabase("RESET default_transaction_read_only")
                try await fixture.endOtherConnections()
            }
        }
    }

    @Test("After a conflict the statement is repeated immediately, without a 503.")
    func conflicts() async throws {
        try await DaemonFixture.withDaemon { fixture, _, addresses in
            try await fixture.run(
                """
                CREATE SEQUENCE public.tries;
                CREATE FUNCTION public.conflict() RETURNS trigger LANGUAGE plpgsql AS $$
                BEGIN
                    IF nextval('public.tries') <= 3 THEN RAISE EXCEPTION 'simulated' USING ERRCODE = '40P01'; END IF;
                    RETURN NULL;
                END $$;
                CREATE TRIGGER conflict BEFORE INSERT ON siwa.accounts EXECUTE FUNCTION public.conflict();
                """
            )
            let response = try await Web.post(fixture.body(fixture.event()), to: addresses.notifications)
            #expect(response.status == 200)
            #expect(try await fixture.texts("SELECT last_value::text FROM public.tries") == ["4"])
        }
    }
}
