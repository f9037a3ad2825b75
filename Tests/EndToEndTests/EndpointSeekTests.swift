import Glibc
import Postgres
import StoreTestSupport
import TestSupport
import Testing

@Suite("Pausing, resuming and seeking with siwad endpoints", .timeLimit(.minutes(10)))
struct EndpointSeekTests {
    @Test("Pausing and resuming loses nothing; --from-end and seek --end discard what waits; seek delivers again.")
    func seeking() async throws {
        try await DaemonFixture.with { fixture in
            try await fixture.endpoints("add shop --url \(DaemonFixture.receiverURL) --type consent.authorized")
            try await fixture.endpoints("pause shop")
            try await Changes.publish(4, in: fixture)
            try await fixture.endpoints("resume shop")
            #expect(try await fixture.deliveryPositions() == ["1 pending", "2 pending", "3 pending", "4 pending"])
            try await fixture.run(
                """
                UPDATE siwa.deliveries SET status = 'delivered', next_attempt_at = NULL, resolved_at = now(), attempts = 1
                WHERE position <= 2;
                UPDATE siwa.deliveries SET status = 'dead', next_attempt_at = NULL, reason = 'refused',
                    first_failed_at = now(), attempts = 10
                WHERE position = 3;
                DELETE FROM siwa.deliveries WHERE position = 1;
                UPDATE siwa.endpoint_states
                SET failing_since = now(), open_until = now() + interval '1 min', probe_delay = interval '10 s'
                """
            )
            #expect(try await fixture.endpoints("list").output.contains("open"))
            let seek = try await fixture.endpoints("seek shop --position 1")
            #expect(seek.output.contains("3 changes"), "\(seek.output)")
            #expect(try await fixture.deliveryPositions() == ["1 pending", "2 pending", "3 pending", "4 pending"])
            #expect(try await fixture.texts("SELECT DISTINCT attempts::text FROM siwa.deliveries") == ["0"])
            let again = try await fixture.attemptEndpoints(["seek", "shop", "--since", "1h", "--note", "x"])
            #expect(again.status == 4, "\(again.errors)")

            try await fixture.endpoints("seek shop --end")
            #expect(
                Set(try await fixture.texts("SELECT status || ' ' || note FROM siwa.deliveries")) == ["discarded why"]
            )
            try await fixture.endpoints("seek shop --since 1h")
            try await fixture.endpoints("pause shop")
            try await fixture.endpoints("resume shop --from-end")
            #expect(Set(try await fixture.texts("SELECT status FROM siwa.deliveries")) == ["discarded"])
            #expect(
                try await fixture.texts(
                    "SELECT count(open_until)::text || count(failing_since) FROM siwa.endpoint_states"
                )
                    == ["00"]
            )
            let ahead = try await fixture.attemptEndpoints(["seek", "shop", "--position", "6", "--note", "x"])
            #expect(
                ahead.status == 1 && ahead.errors.contains("ahead of the log, which ends with 4"),
                "\(ahead.errors)"
            )
            for wrong in [["--position", "0"], ["--end", "--since", "1h"], []] {
                #expect(
                    try await fixture.attemptEndpoints(["seek", "shop", "--note", "x"] + wrong).status == 64,
                    "\(wrong)"
                )
            }
            #expect(try await fixture.audit().contains("endpoints seek: shop --end: why"))
        }
    }

    @Test(
        "A daemon holds changes back during a pause, delivers them after it, and after a seek again with the same ids."
    )
    func pauseWhileDelivering() async throws {
        let settings = try DaemonFixture.delivering()
        try await DaemonFixture.withDaemon(settings) { fixture, _, _ in
            try await WebhookReceiver.with(try DaemonFixture.secret) { receiver in
                func command(_ line: String) async throws {
                    let words = line.split(separator: " ").map(String.init) + ["--note", "why"]
                    let run = try await siwad(["endpoints"] + words, environment: fixture.environment(settings))
                    #expect(run.status == 0, "\(line): \(run.errors)")
                }
                func delivered(_ count: Int) async throws {
                    try await eventually("\(count) deliveries") {
                        try await fixture.deliveries() == ["shop delivered \(count)"]
                    }
                }
                try await fixture.addEndpoint("shop", receiver.url)
                try await command("pause shop")
                try await fixture.revoke(20)
                try await eventually("the deliveries") { try await fixture.deliveries() == ["shop pending 20"] }
                try await command("resume shop")
                try await delivered(20)
                let first = receiver.messages
                #expect(Set(first.compactMap(\.id)).count == 20)
                // Before the revocations, the people signed in.
                try await command("seek shop --position 31")
                try await eventually("the repeated deliveries") { receiver.messages.count == 30 }
                let repeated = receiver.messages.dropFirst(20).compactMap(\.id)
                #expect(repeated.sorted() == first.filter { $0.position > 30 }.compactMap(\.id).sorted())
                try await delivered(20)

                try await command("pause shop")
                try await fixture.run("DELETE FROM siwa.deliveries")
                try await fixture.revoke(5)
                try await eventually("the deliveries") { try await fixture.deliveries() == ["shop pending 5"] }
                try await command("resume shop --from-end")
                try await fixture.revoke(1)
                try await eventually("the change after it") {
                    try await fixture.deliveries() == ["shop delivered 1", "shop discarded 5"]
                }
                #expect(receiver.messages.count == 31)
            }
        }
    }

    @Test("An interrupted seek says how to go on, and keeps what it did.")
    func interruption() async throws {
        try await TestDatabase.with(.siwa) { database in
            try await DaemonFixture.with(database.conninfo) { fixture in
                try await fixture.endpoints("add shop --url \(DaemonFixture.receiverURL) --type consent.authorized")
                try await Changes.publish(2_500, in: fixture)
                try await fixture.run("DELETE FROM siwa.deliveries")
                // The second batch waits for this row.
                try await database.withOpenTransaction { session throws(PostgresError) in
                    try session.execute(
                        script: """
                            INSERT INTO siwa.deliveries (endpoint_id, position, account_id)
                            SELECT endpoint_id, 1500, 1 FROM siwa.endpoints
                            """
                    )
                } _: {
                    let seek = fixture.start(
                        Sealing.settings,
                        arguments: ["endpoints", "seek", "shop", "--position", "1", "--note", "why"],
                        under: ["/usr/bin/env", "--default-signal=INT"]
                    )
                    try await eventually("the first batch") { try await fixture.deliveryPositions().count == 1_000 }
                    seek.send("INT")
                    #expect(try await seek.end(within: .seconds(10)) == 128 + SIGINT)
                    #expect(seek.log.contains { $0.contains("up to position 1000") && $0.contains("--position 1001") })
                }
                try await fixture.endpoints("seek shop --position 1001")
                #expect(try await fixture.deliveryPositions().count == 2_500)
                let affected = "SELECT sum(affected)::text FROM siwa.operator_actions WHERE action = 'endpoints seek'"
                #expect(try await fixture.texts(affected) == ["2499"])
            }
        }
    }

    @Test("What a daemon has locked is discarded later, and a command that can't discard it in time ends with 2.")
    func lockedDeliveries() async throws {
        try await TestDatabase.with(.siwa) { database in
            try await DaemonFixture.with(database.conninfo) { fixture in
                try await fixture.endpoints("add shop --url \(DaemonFixture.receiverURL) --type consent.authorized")
                try await Changes.publish(4, in: fixture)
                let seek = try await database.withOpenTransaction { session throws(PostgresError) in
                    try session.execute(script: "SELECT FROM siwa.deliveries WHERE position = 2 FOR UPDATE")
                } _: {
                    let arguments = ["endpoints", "seek", "shop", "--end", "--note", "why"]
                    let seek = fixture.start(Sealing.settings, arguments: arguments)
                    try await eventually("the other changes to be discarded") {
                        try await fixture.deliveryPositions() == [
                            "1 discarded", "2 pending", "3 discarded", "4 discarded",
                        ]
                    }
                    try await Changes.publish(1, in: fixture)
                    return seek
                }
                #expect(try await seek.end() == 0, "\(seek.log)")
                #expect(seek.log.contains { $0.contains("4 changes discarded") }, "\(seek.log)")
                let kept = ["1 discarded", "2 discarded", "3 discarded", "4 discarded", "5 pending"]
                #expect(try await fixture.deliveryPositions() == kept)

                try await fixture.endpoints("pause shop")
                let resume = try await database.withOpenTransaction { session throws(PostgresError) in
                    // The transaction stays open for longer than a connection usually waits for a lock.
                    try session.execute(
                        script: """
                            SET LOCAL lock_timeout = '60 s';
                            SELECT FROM siwa.deliveries WHERE position = 5 FOR UPDATE
                            """
                    )
                } _: {
                    try await fixture.attemptEndpoints(["resume", "shop", "--from-end", "--note", "x"])
                }
                let left = "0 changes discarded; another session has locked 1 more"
                #expect(resume.status == 2 && resume.errors.contains(left), "\(resume.errors)")
                #expect(try await fixture.texts("SELECT status FROM siwa.endpoints") == ["paused"])
                try await fixture.endpoints("seek shop --end")
                let nothing = try await fixture.attemptEndpoints(["seek", "shop", "--end", "--note", "x"])
                #expect(nothing.status == 4 && nothing.errors.contains("no change waits for shop"), "\(nothing.errors)")
                try await fixture.endpoints("resume shop --from-end")
            }
        }
    }

    @Test("The reason for a pause is that of the latest command that paused the endpoint, even if that command failed.")
    func pauseReasons() async throws {
        try await DaemonFixture.with { fixture in
            func reason(_ name: String, after arguments: [String], _ note: String) async throws -> String? {
                let failed = try await fixture.attemptEndpoints(arguments + ["--note", note])
                #expect(failed.status == 1, "\(arguments): \(failed.errors)")
                return try await fixture.endpoints("list").lines.first { $0.hasPrefix("\(name) ") }.map(String.init)
            }
            try await fixture.endpoints("add shop --url \(DaemonFixture.receiverURL) --type consent.authorized")
            try await Changes.publish(2, in: fixture)
            try await fixture.endpoints("pause shop")
            try await fixture.endpoints("resume shop")
            try await fixture.run(
                """
                CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS $$
                BEGIN
                    RAISE EXCEPTION 'refused';
                END
                $$;
                CREATE TRIGGER refuse BEFORE INSERT OR DELETE ON siwa.deliveries
                    FOR EACH ROW EXECUTE FUNCTION public.refuse();
                """
            )
            let removed = try await reason("shop", after: ["remove", "shop"], "not needed")
            #expect(removed?.hasSuffix("operator: not needed") == true, "\(removed ?? "")")
            let add = [
                "add", "crm", "--url", DaemonFixture.receiverURL, "--type", "consent.authorized", "--from-start",
            ]
            let added = try await reason("crm", after: add, "all changes")
            #expect(added?.hasSuffix("operator: all changes") == true, "\(added ?? "")")
            try await TemporaryDirectory.with { directory in
                let file = try directory.write("endpoints.yaml", "endpoints: {}\n")
                let pruned = try await reason("shop", after: ["apply", file, "--prune"], "clean up")
                #expect(pruned?.hasSuffix("operator: clean up") == true, "\(pruned ?? "")")
            }
            try await fixture.endpoints("pause shop")
            let doctor = try await siwad(["endpoints", "show", "shop"], environment: fixture.environment())
            #expect(doctor.output.contains("operator: why"), "\(doctor.output)")
        }
    }
}
