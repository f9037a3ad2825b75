import AccountStore
import Glibc
import LocalPostgres
import Postgres
import Schema
import StoreTestSupport
import TestSupport
import Testing

@Suite("Upgrades of a database with data")
struct UpgradeTests {
    /// The oldest schema that this version's statements can write to.
    static let oldestSchema = 6

    @Test(
        "A migration from each earlier schema keeps every state, also of facts that are recorded at the same time.",
        arguments: oldestSchema..<Schema.migrations.count
    )
    func migration(from schema: Int) async throws {
        try await TestDatabase.with { database in
            let writer = try await PostgresConnection.connect(database.settings)
            let owner = try await PostgresConnection.connect(database.settings)
            try await RandomStates.migrate(owner, through: schema)
            var states = RandomStates(seed: UInt64(schema))
            try await states.record(half: 0, on: writer)
            async let applied = Migrator(Schema.migrations, schema: Schema.name).up(on: owner)
            try await states.record(half: 1, on: writer)
            #expect(try await applied.map(\.number) == Array(schema + 1...Schema.migrations.count))
            #expect(try await states.differences(on: writer).isEmpty)
            #expect(try await RandomStates.drift(on: writer).isEmpty)
            await writer.close()
            await owner.close()
        }
    }

    /// The file of each table, and the columns of each view, of the schema.
    private static let files = """
        SELECT c.relname || ' ' || c.relfilenode FROM pg_class AS c
        WHERE c.relnamespace = 'siwa'::regnamespace AND c.relkind IN ('r', 'i', 'S') AND c.relfilenode > 0 ORDER BY 1
        """
    private static let columns = """
        SELECT c.relname || ' ' || a.attnum || ' ' || a.attname || ' ' || format_type(a.atttypid, a.atttypmod)
        FROM pg_class AS c JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum > 0
        WHERE c.relnamespace = 'siwa'::regnamespace AND c.relkind = 'v' ORDER BY 1
        """

    @Test("The migration to sign-ins writes no table again, and keeps the columns of every view at their places.")
    func signIns() async throws {
        try await TestDatabase.with { database in
            let connection = try await PostgresConnection.connect(database.settings)
            let store = Store(database: database, connection: connection)
            try await RandomStates.migrate(connection, through: 9)
            var states = RandomStates(seed: 96)
            try await states.record(half: 0, on: connection)
            let (files, columns) = (try await store.texts(Self.files), try await store.texts(Self.columns))
            let digests = try await RandomStates.digests(on: connection)
            try await Migrator(Array(Schema.migrations.prefix(10)), schema: Schema.name).up(on: connection)
            let rewritten = Set(files).subtracting(try await store.texts(Self.files))
            let moved = Set(columns).subtracting(try await store.texts(Self.columns))
            #expect(files.count > 40 && rewritten.isEmpty)
            #expect(columns.count > 60 && moved.isEmpty)
            let after = try await RandomStates.digests(on: connection)
            for (table, digest) in digests where table != "schema_migrations" { #expect(after[table] == digest) }
            try await states.record(half: 1, on: connection)
            #expect(try await states.differences(on: connection).isEmpty)
            await connection.close()
        }
    }

    @Test("The migration to the words of failures writes no table again, and what is stored of failures stays.")
    func deliveryFailures() async throws {
        try await TestDatabase.with { database in
            let connection = try await PostgresConnection.connect(database.settings)
            let store = Store(database: database, connection: connection)
            try await RandomStates.migrate(connection, through: 10)
            try await store.run(
                """
                INSERT INTO siwa.endpoints (name, url) VALUES ('shop', 'https://a.example');
                INSERT INTO siwa.endpoint_states (endpoint_id, failing_since, last_reason)
                SELECT endpoint_id, now(), 'tls' FROM siwa.endpoints;
                INSERT INTO siwa.deliveries (endpoint_id, position, account_id)
                SELECT endpoint_id, number, 1 FROM siwa.endpoints, generate_series(1, 100) AS number;
                INSERT INTO siwa.delivery_attempts (endpoint_id, position, attempt, attempted_at, duration, reason, detail)
                SELECT endpoint_id, position, 1, now(), '1 s', 'tls', 'words' FROM siwa.deliveries
                """
            )
            let files = try await store.texts(Self.files)
            try await Migrator(Array(Schema.migrations.prefix(11)), schema: Schema.name).up(on: connection)
            #expect(try await store.texts(Self.files) == files)
            let state = "concat_ws(' ', last_reason, last_detail, failing_since <= now())"
            #expect(try await store.texts("SELECT \(state) FROM siwa.endpoint_states") == ["tls t"])
            let attempts = "SELECT concat_ws(' ', bool_and(counted), min(detail), count(*)) FROM siwa.delivery_attempts"
            #expect(try await store.texts(attempts) == ["t words 100"])
            await connection.close()
        }
    }

    /// Not with ``pg_upgrade``, which needs two servers of different versions.
    @Test("A dump of the schema, restored in another server, has every row, and siwad goes on there.")
    func dumpAndRestore() async throws {
        try await Servers.with { servers in
            try await servers.run(old: false) { new in
                try await servers.run(old: true) { old in
                    let source = try await servers.connect(old)
                    try await RandomStates.migrate(source)
                    var states = RandomStates(seed: 1)
                    try await states.record(half: 0, on: source)
                    let digests = try await RandomStates.digests(on: source)

                    let target = try await servers.connect(new)
                    try await target.withSession { session throws(PostgresError) in
                        try session.execute(
                            script: "CREATE ROLE siwad_daemon; CREATE ROLE siwad_reader; CREATE ROLE siwad_application"
                        )
                    }
                    let dump = "/tmp/siwad-dump-\(getpid()).sql"
                    defer { unlink(dump) }
                    try await servers.program("pg_dump", "--schema=siwa", "--file=\(dump)", old.conninfo())
                    try await servers.program("psql", "-v", "ON_ERROR_STOP=1", "-qXf", dump, new.conninfo())
                    #expect(try await RandomStates.digests(on: target) == digests)
                    #expect(try await RandomStates.drift(on: target).isEmpty)

                    try await states.record(half: 1, on: target)
                    #expect(try await states.differences(on: target).isEmpty)
                    await source.close()
                    await target.close()
                }
            }
        }
    }

    @Test("pg_upgrade keeps every row, and siwad goes on afterwards.", .enabled(if: Servers.differ))
    func serverUpgrade() async throws {
        try await Servers.with { servers in
            var states = RandomStates(seed: 2)
            let digests = try await servers.run(old: true) { old in
                let connection = try await servers.connect(old)
                try await RandomStates.migrate(connection)
                try await states.record(half: 0, on: connection)
                let digests = try await RandomStates.digests(on: connection)
                await connection.close()
                return digests
            }
            try await servers.upgrade()
            try await servers.run(old: false) { new in
                let connection = try await servers.connect(new)
                #expect(try await RandomStates.digests(on: connection) == digests)
                #expect(try await RandomStates.drift(on: connection).isEmpty)
                try await states.record(half: 1, on: connection)
                #expect(try await states.differences(on: connection).isEmpty)
                await connection.close()
            }
        }
    }
}

/// A server of the oldest installed version and one of the version under test, of which the old one is the older. They are the
/// same version unless `POSTGRES_BIN` names another one.
struct Servers {
    /// The directories of PostgreSQL's programs; nil for the installed ones.
    private static let (oldPrograms, newPrograms): (String?, String?) = {
        let places = (14...40).map { "/usr/lib/postgresql/\($0)/bin" }
        let installed = places.first { access("\($0)/postgres", X_OK) == 0 }
        guard let tested = getenv("POSTGRES_BIN").map({ String(cString: $0) }), !tested.isEmpty else {
            return (installed, nil)
        }
        guard let installed, release(of: tested) < release(of: installed) else { return (installed, tested) }
        return (tested, installed)
    }()

    static var differ: Bool { oldPrograms != nil && newPrograms != nil && newPrograms != oldPrograms }

    /// 15 for `/usr/lib/postgresql/15/bin`.
    private static func release(of programs: String) -> Int {
        Int(programs.split(separator: "/").dropLast().last?.prefix(while: \.isNumber) ?? "") ?? .max
    }

    private let directory: String

    static func with(_ body: (Servers) async throws -> Void) async throws {
        let servers = Servers(directory: "/tmp/siwad-servers-\(UInt32.random(in: 0...UInt32.max))")
        let result: Result<Void, any Error>
        do {
            result = .success(try await body(servers))
        } catch {
            result = .failure(error)
        }
        _ = try await ChildProcess.run(["rm", "-rf", servers.path(old: true), servers.path(old: false)])
        try result.get()
    }

    /// Lends a server with the data of earlier runs, and stops it.
    func run<R>(old: Bool, _ body: (LocalCluster) async throws -> R) async throws -> R {
        var options = LocalCluster.Options()
        options.programs = old ? Self.oldPrograms : Self.newPrograms
        let server = try await LocalCluster.start(at: path(old: old), options)
        let result: Result<R, any Error>
        do {
            result = .success(try await body(server))
        } catch {
            result = .failure(error)
        }
        await server.stop()
        return try result.get()
    }

    func connect(_ server: LocalCluster) async throws -> PostgresConnection {
        try await PostgresConnection.connect(ConnectionSettings(conninfo: server.conninfo(), applicationName: "tests"))
    }

    /// Runs a program of the newer version.
    func program(_ name: String, _ arguments: String...) async throws {
        try await succeed([Self.newPrograms.map { "\($0)/\(name)" } ?? name] + arguments)
    }

    /// Moves the data of the old server, which is stopped, into the other one's directory.
    func upgrade() async throws {
        let (old, new) = (path(old: true), path(old: false))
        var status = stat()
        try #require(stat(old, &status) == 0)
        // As the servers' user, which is another one if these tests run as root.
        let other = ["setpriv", "--reuid=\(status.st_uid)", "--regid=\(status.st_gid)", "--clear-groups"]
        let user = geteuid() == 0 ? other : []
        try #require(mkdir(new, 0o700) == 0 && chown(new, status.st_uid, status.st_gid) == 0)
        let script = """
            cd "$2" && bin=$4
            # Since version 18, a cluster has checksums unless it is created without them, and both must be the same.
            if "$bin/initdb" --help | grep -q -- --no-data-checksums; then without=--no-data-checksums; fi
            "$bin/initdb" -D "$2/data" --username=postgres --auth=trust --encoding=UTF8 --locale=C.UTF-8 --no-sync ${without-} \\
                && "$bin/pg_upgrade" -U postgres -b "$3" -B "$bin" -d "$1/data" -D "$2/data" -s "$2" --no-sync
            """
        let arguments = [old, new, Self.oldPrograms ?? "", Self.newPrograms ?? ""]
        try await succeed(user + ["sh", "-c", script, "sh"] + arguments)
    }

    // MARK: - Private parts

    private func path(old: Bool) -> String { directory + (old ? "-old" : "-new") }

    private func succeed(_ command: [String]) async throws {
        let result = try await ChildProcess.run(command)
        try #require(result.isSuccess, "\(result.output.suffix(2_000))")
    }
}
