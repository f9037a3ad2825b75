import AccountStore
import AppleTokens
import AppleSimulator
import Basics
import Postgres
import Spool
import StoreTestSupport
import Telemetry
import TestSupport
import Testing

@testable import Ingest

@Suite("Faults of PostgreSQL", .timeLimit(.minutes(5)))
struct DatabaseFaultTests {
    /// Something that PostgreSQL does to the daemon, and how it ends.
    enum Fault: String, CaseIterable, CustomTestStringConvertible {
        case readOnly = "read-only server"
        case connectionLimit = "too many connections"
        case missingRight = "missing right"
        case lock = "lock timeout"

        var testDescription: String { rawValue }

        func begin(_ role: DaemonRole, _ fixture: IngestFixture) async throws {
            switch self {
            case .readOnly: try await role.setReadOnly(true)
            case .connectionLimit: try await role.limitConnections(to: 0)
            case .missingRight: try await role.setMayInsert(false)
            case .lock: try await fixture.stallCommits()
            }
        }

        func end(_ role: DaemonRole, _ fixture: IngestFixture) async throws {
            switch self {
            case .readOnly: try await role.setReadOnly(false)
            case .connectionLimit: try await role.limitConnections(to: -1)
            case .missingRight: try await role.setMayInsert(true)
            case .lock: try await fixture.letCommit()
            }
        }
    }

    @Test(
        "With a spool, everything is acknowledged and stored after the fault; nothing becomes a dead letter.",
        arguments: Fault.allCases
    )
    func withSpool(_ fault: Fault) async throws {
        try await TestDatabase.with(.siwa) { database in
            try await DaemonRole.with(database, lockTimeout: .milliseconds(200)) { role in
                let directory = try TemporaryDirectory()
                let spool = try Spool(directory: directory.path, limit: 1 << 30)
                try await IngestFixture.with(database, role.settings, spool: spool) { fixture in
                    await fixture.until { $0.service.storage == .database }
                    #expect(await fixture.client.answer(try fixture.body(sub: "early")) == .acknowledged)
                    try await fault.begin(role, fixture)
                    let bodies = try (0..<20).map { try fixture.body(sub: "person\($0)") }
                    #expect(await fixture.client.answers(bodies).allSatisfy { $0 == .acknowledged })
                    await fixture.until { $0.service.storage == .spool }
                    try await fault.end(role, fixture)
                    await fixture.until { $0.service.storage == .database && $0.service.spoolBytes == 0 }
                    #expect(
                        try await fixture.texts(
                            "SELECT source || count(*) FROM siwa.notifications GROUP BY source ORDER BY 1"
                        )
                            == ["endpoint1", "spool20"]
                    )
                    #expect(try await fixture.texts("SELECT reason FROM siwa.dead_letters") == [])
                }
            }
        }
    }

    @Test(
        "Without a spool, requests are answered 503 until the fault ends; nothing becomes a dead letter.",
        arguments: Fault.allCases
    )
    func withoutSpool(_ fault: Fault) async throws {
        try await TestDatabase.with(.siwa) { database in
            try await DaemonRole.with(database, lockTimeout: .milliseconds(200)) { role in
                try await IngestFixture.with(database, role.settings) { fixture in
                    await fixture.untilStoring()
                    #expect(await fixture.client.answer(try fixture.body(sub: "early")) == .acknowledged)
                    try await fault.begin(role, fixture)
                    let refused = IngestResponse.unavailable(.databaseUnavailable, retryAfterSeconds: 5)
                    #expect(await fixture.client.answer(try fixture.body(id: "refused")) == refused)
                    try await fault.end(role, fixture)
                    var answer = refused
                    while answer == refused {
                        await fixture.untilStoring()
                        answer = await fixture.client.answer(try fixture.body(id: "late"))
                    }
                    #expect(answer == .acknowledged)
                    #expect(
                        try await fixture.texts("SELECT jti FROM siwa.notifications WHERE sub = 'person'") == ["late"]
                    )
                    #expect(try await fixture.texts("SELECT reason FROM siwa.dead_letters") == [])
                }
            }
        }
    }

    @Test("During a lasting fault, attempts are made at growing intervals and it is logged once.")
    func noBusyLoop() async throws {
        try await TestDatabase.with(.siwa) { database in
            try await DaemonRole.with(database) { role in
                try await IngestFixture.with(database, role.settings) { fixture in
                    await fixture.untilStoring()
                    // Connections can be had all the time; it is the statement that fails.
                    try await fixture.run(
                        """
                        CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS $$
                        BEGIN
                            RAISE EXCEPTION 'not today';
                        END $$;
                        CREATE TRIGGER refuse BEFORE INSERT ON siwa.accounts FOR EACH ROW EXECUTE FUNCTION public.refuse()
                        """
                    )
                    for _ in 0..<3 {
                        await fixture.untilStoring()
                        _ = await fixture.client.answer(try fixture.body())
                    }
                    #expect(fixture.log.count("PostgreSQL can't be written to; notifications are answered 503") <= 3)
                    #expect(fixture.log.count("P0001") >= 1)
                }
            }
        }
    }

    @Test("A missing right is found when the writer connects, and the log names it.")
    func missingRight() async throws {
        try await TestDatabase.with(.siwa) { database in
            try await DaemonRole.with(database) { role in
                try await role.setMayInsert(false)
                try await IngestFixture.with(database, role.settings) { fixture in
                    await fixture.until { $0.log.count("permission denied for table account_changes") == 1 }
                    #expect(!fixture.service.isStoring)
                    try await role.setMayInsert(true)
                    await fixture.untilStoring()
                    #expect(await fixture.client.answer(try fixture.body()) == .acknowledged)
                }
            }
        }
    }

    @Test("If a partition was dropped, it is created again and the notification is stored.")
    func droppedPartition() async throws {
        try await IngestFixture.with { fixture in
            await fixture.untilStoring()
            #expect(await fixture.client.answer(try fixture.body(id: "a")) == .acknowledged)
            let partition = try await fixture.texts("SELECT tableoid::regclass::text FROM siwa.notifications")
            try await fixture.run("DROP TABLE \(try #require(partition.first))")
            #expect(await fixture.client.answer(try fixture.body(id: "b")) == .acknowledged)
            #expect(try await fixture.texts("SELECT jti FROM siwa.notifications") == ["b"])
            #expect(try await fixture.texts("SELECT reason FROM siwa.dead_letters") == [])
        }
    }

    @Test("Notifications issued decades apart are stored in one batch, without partitions for the years between.")
    func decadesApart() async throws {
        try await TestDatabase.with(.siwa) { database in
            let connection = try await PostgresConnection.connect(database.settings)
            let batch = [Int64(2009), 2030, 2199].map { year in
                let time = WallTime(seconds: (year - 1_970) * 31_556_952)
                return Submission(
                    work: .notification(.sample("email-enabled", sub: "person", at: time, id: "\(year)")),
                    sink: .none,
                    ticket: 0
                )
            }
            let before = try await Self.partitions(connection)
            let committer = Committer(source: .spool)
            let settled = try await committer.commit(batch, on: connection)
            #expect(settled.count == 3)
            #expect(try await Self.partitions(connection) <= before + 6)
            await connection.close()
        }
    }

    @Test("A server that accepts a connection and never answers does not delay notifications that have a spool.")
    func silentServer() async throws {
        let server = try SilentServer()
        let directory = try TemporaryDirectory()
        let spool = try Spool(directory: directory.path, limit: 1 << 30)
        let conninfo = "host=127.0.0.1 port=\(server.port) dbname=x user=x connect_timeout=1 sslmode=disable"
        try await IngestFixture.with(conninfo: conninfo, spool: spool) { fixture in
            await fixture.until { $0.service.storage == .spool }
            let body = try fixture.body()
            #expect(await fixture.client.answer(body) == .acknowledged)
        }
    }

    @Test("The loss of PostgreSQL is noticed while no notification arrives.")
    func idle() async throws {
        try await TestDatabase.with(.siwa) { database in
            try await DaemonRole.with(database) { role in
                try await IngestFixture.with(database, role.settings) { fixture in
                    await fixture.untilStoring()
                    try await role.shutOut()
                    await fixture.until { !$0.service.isStoring }
                    #expect(fixture.metrics.databaseUp.value == 0)
                    try await role.letIn()
                    await fixture.untilStoring()
                    #expect(await fixture.client.answer(try fixture.body()) == .acknowledged)
                }
            }
        }
    }

    @Test("A sequence that is behind its table makes no dead letters, and the log names its key.")
    func sequenceBehind() async throws {
        try await IngestFixture.with { fixture in
            await fixture.untilStoring()
            let people = try (0..<20).map { try fixture.body(sub: "person\($0)") }
            #expect(await fixture.client.answers(people).allSatisfy { $0 == .acknowledged })
            try await fixture.run("ALTER TABLE siwa.accounts ALTER account_id RESTART WITH 1")
            let answer = await fixture.client.answer(try fixture.body(sub: "another"))
            #expect(answer == .unavailable(.databaseUnavailable, retryAfterSeconds: 5))
            #expect(try await fixture.texts("SELECT reason FROM siwa.dead_letters") == [])
            #expect(fixture.log.count("constraint accounts_pkey; the sequence of this key is behind its table") == 1)
            // The second refusal in a row is taken for a fault of the server.
            let others = try (0..<2).map { try fixture.body(sub: "other\($0)") }
            #expect(await fixture.client.answers(others).allSatisfy { $0 != .acknowledged })
            await fixture.until { $0.log.count("can't be written to") == 1 }
            #expect(fixture.log.count("the sequence of this key is behind its table") == 2)
            try await fixture.run("ALTER TABLE siwa.accounts ALTER account_id RESTART WITH 1000")
            await fixture.untilStoring()
            #expect(await fixture.client.answer(try fixture.body(sub: "another")) == .acknowledged)
        }
    }

    private static func partitions(_ connection: PostgresConnection) async throws -> Int {
        try await connection.withSession { session throws(PostgresError) in
            let sql = "SELECT count(*) FROM pg_inherits WHERE inhparent = 'siwa.notifications'::regclass"
            return Int(try session.execute(Statement(once: sql)).int64(0, 0))
        }
    }
}
