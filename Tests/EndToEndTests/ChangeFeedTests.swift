import AccountStore
import AppleSimulator
import Glibc
import JOSE
import Postgres
import StoreTestSupport
import TestSupport
import Testing

@Suite("The change feed", .timeLimit(.minutes(10)))
struct ChangeFeedTests {
    private func post(
        _ type: String,
        _ sub: String,
        _ fixture: DaemonFixture,
        _ url: String,
        secondsAgo: Int64 = 10
    ) async throws {
        let body = try fixture.body(fixture.event(type, sub: sub, secondsAgo: secondsAgo))
        #expect(try await Web.post(body, to: url).status == 200)
    }

    /// The subs of the published changes, in their order.
    private func published(_ fixture: DaemonFixture) async throws -> [String] {
        try await fixture.texts("SELECT sub FROM siwa.changes ORDER BY position")
    }

    /// Changes without a position, positions without a change, and gaps.
    private func faults(_ fixture: DaemonFixture) async throws -> [String] {
        try await fixture.texts(
            """
            SELECT concat_ws(' ', l.position, c.change_id)
            FROM siwa.account_changes AS c FULL JOIN siwa.change_log AS l USING (change_id)
            WHERE l.position IS NULL OR c.change_id IS NULL
            UNION ALL
            SELECT 'gaps' FROM siwa.change_log HAVING max(position) <> count(*)
            """
        )
    }

    /// All published events, one JSON object a line.
    private func events(_ fixture: DaemonFixture) async throws -> [String] {
        let arguments = ["changes", "follow", "--json", "--from-start", "--until-current"]
        return try await siwad(arguments, environment: fixture.environment()).lines.map(String.init)
    }

    @Test("What a daemon stores is published immediately, and what an application or operator does within seconds.")
    func delays() async throws {
        try await DaemonFixture.withDaemon { fixture, _, addresses in
            // One after the other, so that each waits for a round of its own.
            for number in 0..<20 {
                try await post("consent-revoked", "p\(number)", fixture, addresses.notifications)
                try await eventually("change \(number)") { try await published(fixture).count == number + 1 }
            }
            // The machine is busy with other tests, so only the fastest tells how short the daemon's wait is.
            let shortest = "SELECT min(published_at - recorded_at) < interval '100 ms' FROM siwa.changes"
            #expect(try await fixture.texts("SELECT (\(shortest))::text") == ["true"])
            // Most don't wait for the look of every second.
            #expect(try await slowFacets(fixture, than: "500 ms") == [])
            try await fixture.run("SELECT siwa.record_sign_in('com.example.one', 'application')")
            try await eventually("the sign-in") { try await published(fixture).count == 21 }
            // Others see the commit before the daemon counts it.
            var metrics = ""
            try await eventually("the counter of published changes") {
                metrics = try await Web.get(addresses.operations + "/metrics").body
                return metrics.contains("siwad_changes_published_total 21\n")
            }
            #expect(metrics.contains("siwad_publication_age_seconds 0\n"), "\(metrics)")
            #expect(metrics.contains("siwad_publication_delay_seconds_count"))
        }
    }

    /// The facets of which half of the changes or more were published later than this.
    private func slowFacets(_ fixture: DaemonFixture, than limit: String) async throws -> [String] {
        try await fixture.texts(
            """
            SELECT facet FROM siwa.changes GROUP BY facet
            HAVING percentile_disc(0.5) WITHIN GROUP (ORDER BY published_at - recorded_at) >= interval '\(limit)'
            """
        )
    }

    @Test("What applications and operators do is published within 1.2 seconds, although no notification arrives.")
    func delaysOfOthers() async throws {
        try await DaemonFixture.withDaemon { fixture, _, _ in
            try await fixture.run("SELECT siwa.record_sign_in('com.example.one', 'person')")
            let count = 14
            for number in 0..<count {
                try await fixture.run("SELECT siwa.open_session('com.example.one', 'person', 'session-\(number)')")
            }
            // The commands spread them over about a second, so that the usual delay is half a second. Single ones may be
            // longer on a busy machine.
            for number in 0..<count {
                try await fixture.run("SELECT siwa.record_sign_in('com.example.one', 'application-\(number)')")
                let end = ["sessions", "end", "session-\(number)", "--note", "stolen"]
                let run = try await siwad(end, environment: fixture.environment())
                #expect(run.status == 0, "\(run.errors)")
            }
            try await eventually("all changes") { try await published(fixture).count == 1 + count + count }
            #expect(try await slowFacets(fixture, than: "1.2 s") == [])
        }
    }

    /// The metric of the oldest change that waits; nil if it is not exported.
    private func age(_ addresses: DaemonProcess.Addresses) async throws -> Double? {
        let metrics = try await Web.get(addresses.operations + "/metrics").body
        let line = metrics.split(separator: "\n").first { $0.hasPrefix("siwad_publication_age_seconds ") }
        return line?.split(separator: " ").last.flatMap { Double($0) }
    }

    @Test("While publication fails, a metric says for how long a change has waited; then it is 0 again.")
    func failing() async throws {
        try await DaemonFixture.withDaemon { fixture, daemon, addresses in
            try await fixture.run(
                """
                CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'no'; END $$;
                CREATE TRIGGER refuse BEFORE INSERT ON siwa.change_log
                FOR EACH ROW EXECUTE FUNCTION public.refuse()
                """
            )
            try await post("consent-revoked", "person", fixture, addresses.notifications)
            // The daemon measures every 10 s.
            try await eventually("the age") { try await age(addresses) ?? 0 > 0 }
            #expect(try await published(fixture).isEmpty)
            try await eventually("the warning") { daemon.log.contains { $0.contains("changes can't be published") } }
            try await fixture.run("DROP TRIGGER refuse ON siwa.change_log")
            try await eventually("the change") { try await published(fixture) == ["person"] }
            try await eventually("no age") { try await age(addresses) == 0 }
        }
    }

    @Test("An age that can't be measured is left out.")
    func unmeasured() async throws {
        try await DaemonFixture.withDaemon { fixture, _, addresses in
            try await eventually("the first measurement") { try await age(addresses) == 0 }
            try await fixture.run("ALTER FUNCTION siwa.publication_age() RENAME TO other_age")
            try await eventually("no age") { try await age(addresses) == nil }
            try await fixture.run("ALTER FUNCTION siwa.other_age() RENAME TO publication_age")
            try await eventually("the age") { try await age(addresses) == 0 }
        }
    }

    @Test("While publication is held up, a metric says for how long a change has waited; then it is 0 again.")
    func heldUp() async throws {
        try await TestDatabase.with(.siwa) { database in
            try await DaemonFixture.with(database.conninfo) { fixture in
                try await fixture.withDaemon { _, addresses async throws in
                    // The daemon measures every 10 s.
                    try await database.withOpenTransaction { session throws(PostgresError) in
                        try session.execute(
                            script: "SET LOCAL lock_timeout = 0; SELECT FROM siwa.publication FOR UPDATE"
                        )
                    } _: {
                        try await post("consent-revoked", "person", fixture, addresses.notifications)
                        try await eventually("the age") { try await age(addresses) ?? 0 > 0 }
                        #expect(try await published(fixture).isEmpty)
                    }
                    try await eventually("the change") { try await published(fixture) == ["person"] }
                    try await eventually("no age") { try await age(addresses) == 0 }
                }
            }
        }
    }

    @Test("At SIGTERM, a daemon publishes its last changes; with SIWAD_EFFECTS off, it publishes none.")
    func shutdown() async throws {
        try await DaemonFixture.withDaemon(["SIWAD_EFFECTS": "off"]) { fixture, daemon, addresses in
            try await post("consent-revoked", "unpublished", fixture, addresses.notifications)
            daemon.send("TERM")
            #expect(try await daemon.end() == 0)
            #expect(try await published(fixture).isEmpty)
            let other = fixture.start()
            let url = try await other.ready().notifications
            try await eventually("the change of before") { try await published(fixture) == ["unpublished"] }
            for number in 0..<5 { try await post("consent-revoked", "p\(number)", fixture, url) }
            other.send("TERM")
            #expect(try await other.end() == 0)
            #expect(try await published(fixture).count == 6)
        }
    }

    @Test("Several daemons, killed again and again under load, publish each change once and in order.")
    func killed() async throws {
        try await DaemonFixture.with { fixture in
            let daemons = [fixture.start(), fixture.start()]
            var urls: [String] = []
            for daemon in daemons { urls.append(try await daemon.ready().notifications) }
            let load = LoadRun(to: urls, balancing: true) {
                let event = fixture.event("consent-revoked", sub: "person \(Int.random(in: 0..<200))")
                return LoadRun.Item(id: event.id, body: try fixture.body(event))
            }
            async let running: Void = load.run(connections: 8)
            var victims = daemons
            for _ in 0..<4 {
                let goal = load.acknowledged + 50
                try await eventually("progress") { load.acknowledged >= goal }
                await victims.removeFirst().kill()
                victims.append(fixture.start())
                urls.append(try await victims[1].ready().notifications)
                urls.removeFirst()
                load.redirect(to: urls)
            }
            load.stop()
            try await running
            try await eventually("all changes") { try await faults(fixture).isEmpty }
            #expect(try await !published(fixture).isEmpty)
        }
    }

    private static let hasPython = {
        let script = "/usr/bin/python3 -c 'import psycopg' 2>/dev/null"
        return system(script) == 0
    }()

    @Test(
        "A consumer that is killed 200 times acts on each change once, while the daemon is killed too.",
        .enabled(if: ChangeFeedTests.hasPython, "needs Debian's python3-psycopg")
    )
    func exactlyOnce() async throws {
        try await DaemonFixture.with { fixture in
            try await fixture.run(
                """
                CREATE SCHEMA shop;
                CREATE TABLE shop.feed (position bigint NOT NULL);
                INSERT INTO shop.feed VALUES (0);
                CREATE TABLE shop.effects (
                    id bigint GENERATED ALWAYS AS IDENTITY, sub text NOT NULL, pid integer NOT NULL
                );
                CREATE TABLE shop.stop ()
                """
            )
            let python = ["/usr/bin/python3", PythonProgram.path("consumer.py"), "200"]
            let consumer = fixture.start(arguments: [], under: python)
            var extra = 0
            for part in 0..<3 {
                let daemon = fixture.start()
                let url = try await daemon.ready().notifications
                for number in 0..<60 { try await post("consent-revoked", "\(part) \(number)", fixture, url) }
                if part < 2 {
                    await daemon.kill()
                } else {
                    // The test shows nothing if the last consumer, which is not killed, acts on all changes.
                    try await eventually("acts of ten killed consumers") {
                        extra += 1
                        try await post("consent-revoked", "extra \(extra)", fixture, url)
                        return try await fixture.texts("SELECT DISTINCT pid::text FROM shop.effects").count >= 10
                    }
                    daemon.send("TERM")
                    #expect(try await daemon.end() == 0)
                }
            }
            #expect(try await faults(fixture).isEmpty)
            try await fixture.run("INSERT INTO shop.stop DEFAULT VALUES")
            #expect(try await consumer.end() == 0, "\(consumer.log)")
            let effects = try await fixture.texts("SELECT sub FROM shop.effects ORDER BY id")
            #expect(effects.count == 180 + extra)
            #expect(try await effects == published(fixture))
        }
    }

    /// Restores a dump of the fixture's database in another cluster.
    private func copy(_ fixture: DaemonFixture, to conninfo: String) async throws {
        let script = """
            pg_dump --no-privileges "$SOURCE" | psql --no-psqlrc --quiet --set ON_ERROR_STOP=1 "$TARGET" >/dev/null
            """
        let copy = DaemonProcess(
            [],
            environment: ["SOURCE": fixture.conninfo, "TARGET": conninfo],
            under: ["/bin/bash", "-c", "set -eo pipefail\n\(script)"]
        )
        #expect(try await copy.end() == 0, "\(copy.log)")
    }

    @Test("In a database restored from a dump in another cluster, feed and deliveries lose and repeat nothing.")
    func restored() async throws {
        let settings = try DaemonFixture.delivering()
        try await WebhookReceiver.with(
            try DaemonFixture.secret,
            answering: { message, _ in .status(message.sub == "b" ? 500 : 200) }
        ) { receiver in
            try await DaemonFixture.withDaemon(settings) { fixture, daemon, addresses in
                try await fixture.addEndpoint("shop", receiver.url) { $0.retries = [.seconds(3_600)] }
                for sub in ["a", "b"] { try await post("consent-revoked", sub, fixture, addresses.notifications) }
                try await fixture.untilDelivered("shop delivered 1", "shop retry 1")
                daemon.send("TERM")
                #expect(try await daemon.end() == 0)
                receiver.answer { _, _ in .status(200) }
                let events = try await events(fixture)
                try await fixture.run("SELECT siwa.record_sign_in('com.example.one', 'unpublished')")
                try await PrivateCluster.with { cluster in
                    try await copy(fixture, to: cluster.conninfo())
                    try await DaemonFixture.with(cluster.conninfo()) { restored in
                        // As if the hour had passed.
                        let due = "UPDATE siwa.deliveries SET next_attempt_at = now() WHERE status = 'retry'"
                        try await restored.run(due)
                        try await restored.withDaemon(settings) { daemon, addresses async throws in
                            try await eventually("the change that the dump had without a position") {
                                try await published(restored) == ["a", "b", "unpublished"]
                            }
                            try await post("consent-revoked", "after", restored, addresses.notifications)
                            try await eventually("the next change") {
                                try await published(restored) == ["a", "b", "unpublished", "after"]
                            }
                            #expect(try await faults(restored).isEmpty)
                            #expect(try await self.events(restored).starts(with: events))
                            try await eventually("the warning") {
                                daemon.log.contains { $0.contains("restored from a dump") }
                            }
                            try await restored.untilDelivered("shop delivered 3")
                        }
                    }
                }
                #expect(receiver.messages.map(\.sub).sorted() == ["a", "after", "b", "b"])
                let retried = Set(receiver.messages.filter { $0.sub == "b" }.map(\.id))
                #expect(retried.count == 1 && !retried.contains(nil))
            }
        }
    }

    @Test("A reader of a standby sees a prefix of the feed at any time.")
    func standby() async throws {
        try await PrivateCluster.withMigrated { cluster, fixture in
            try await cluster.withStandby { standby in
                let daemons = [fixture.start(), fixture.start()]
                var urls: [String] = []
                for daemon in daemons { urls.append(try await daemon.ready().notifications) }
                let load = LoadRun(to: urls) {
                    let event = fixture.event("consent-revoked", sub: "person \(Int.random(in: 0..<100_000))")
                    return LoadRun.Item(id: event.id, body: try fixture.body(event))
                }
                let reader = try await DaemonFixture.connect(standby.conninfo(database: "siwa"))
                var seen: [Int64] = []
                func read() async throws {
                    let last = Int64(seen.count)
                    seen += try await reader.withSession { session throws(PostgresError) in
                        try session.execute(
                            Statement("SELECT position FROM siwa.changes WHERE position > $1 ORDER BY position"),
                            last
                        ).decode { (position: Int64) in position }
                    }
                    #expect(seen.dropFirst(Int(last)).elementsEqual((last + 1)..<(Int64(seen.count) + 1)))
                }
                async let running: Void = load.run(connections: 8)
                while load.acknowledged < 500 { try await read() }
                load.stop()
                try await running
                for daemon in daemons {
                    daemon.send("TERM")
                    #expect(try await daemon.end() == 0)
                }
                let end = try await published(fixture).count
                #expect(end >= 400 && !seen.isEmpty)
                try await eventually("the standby to have all") {
                    try await read()
                    return seen.count == end
                }
                await reader.close()
            }
        }
    }

    @Test("After a failover that lost the last changes, their positions are given to others, which have other ids.")
    func failover() async throws {
        try await PrivateCluster.withMigrated { cluster, fixture in
            try await cluster.withStandby { standby in
                let daemon = fixture.start()
                let url = try await daemon.ready().notifications
                try await post("consent-revoked", "kept", fixture, url)
                let conninfo = standby.conninfo(database: "siwa")
                try await DaemonFixture.with(conninfo) { copy in
                    try await eventually("the change on the standby") { try await published(copy) == ["kept"] }
                }
                await standby.stop()
                for sub in ["lost", "lost too"] { try await post("consent-revoked", sub, fixture, url) }
                try await eventually("all changes") { try await published(fixture).count == 3 }
                let before = try await events(fixture)
                await daemon.kill()
                try await cluster.kill()
                try await standby.start()
                try await DaemonFixture.with(conninfo) { promoted in
                    try await promoted.run("SELECT pg_promote()")
                    try await promoted.withDaemon { _, addresses async throws in
                        try await post("consent-revoked", "lost", promoted, addresses.notifications)
                        try await eventually("the next change") { try await published(promoted) == ["kept", "lost"] }
                    }
                    let after = try await events(promoted)
                    #expect(after[0] == before[0])
                    #expect(after[1].contains(#""position":2,"#) && after[1].prefix(40) != before[1].prefix(40))
                    let ahead = try await siwad(
                        ["changes", "follow", "--after", "3"],
                        environment: promoted.environment()
                    )
                    #expect(ahead.status == 1 && ahead.errors.contains("position 3 is ahead of the log"))
                }
            }
        }
    }

    @Test("A hint names the positions, and in a flood there are at most 20 in a second.")
    func hints() async throws {
        try await DaemonFixture.withDaemon { fixture, _, addresses in
            let connection = try await DaemonFixture.connect(fixture.conninfo)
            try await connection.withSession { session throws(PostgresError) in
                try session.execute(script: "LISTEN siwa_changes")
            }
            let count = 200
            let start = ContinuousClock.now
            for number in 0..<count {
                try await post("consent-revoked", "p\(number)", fixture, addresses.notifications)
            }
            var (hints, last) = (0, 0)
            while last < count {
                let heard = try await connection.waitForNotifications(atMost: .seconds(10))
                try #require(!heard.isEmpty, "there was no hint after position \(last)")
                for hint in heard {
                    hints += 1
                    let first = last + 1
                    last = try JSONValue(parsing: Array(hint.payload.utf8))["last"]?.integer.map { Int($0) } ?? 0
                    #expect(hint.channel == "siwa_changes" && last >= first)
                    #expect(hint.payload == #"{"v":1,"first":\#(first),"last":\#(last)}"#)
                }
            }
            let seconds = (ContinuousClock.now - start) / .seconds(1)
            // One in the moment of the start, and the others 50 ms apart.
            #expect(Double(hints) <= 20 * seconds + 1, "in \(seconds) s")
            let rounds = try await fixture.texts("SELECT DISTINCT published_at::text FROM siwa.changes")
            #expect(rounds.count == hints)
            await connection.close()
        }
    }
}
