import FoundationEssentials
import LocalPostgres
import Postgres

/// Where measurements take place: a PostgreSQL cluster as durable as one in production, with databases that every run
/// begins from a copy of.
struct Workbench {
    /// The absolute path of the working directory.
    let directory: String
    /// The siwad under test.
    let siwad: String
    /// Tells databases of one schema, filled in one way, from others.
    private let schema: String
    private let cluster: LocalCluster

    /// Two fifths of the memory: on a machine of 20 GiB or more there is room for what notifications read of ten million
    /// accounts, more than seven gigabytes.
    private static let bufferMebibytes = Machine.mebibytes * 2 / 5

    /// Settings of the server that a database of this size would have in production. All else is PostgreSQL's default:
    /// fsync, synchronous_commit and full_page_writes are on.
    static let serverSettings = [
        "shared_buffers": "\(bufferMebibytes)MB", "max_wal_size": "16GB", "min_wal_size": "2GB",
        "checkpoint_timeout": "30min", "maintenance_work_mem": "512MB",
    ]

    /// Runs `body` with the cluster started.
    static func with<R>(_ options: BenchmarkOptions, _ body: (Workbench) async throws -> R) async throws -> R {
        let directory = absolute(options.work)
        let siwad = absolute(options.siwad)
        guard FileManager.default.isExecutableFile(atPath: siwad) else {
            throw BenchmarkError("\(siwad) is not there: run swift build -c release --product siwad")
        }
        try FileManager.default.createDirectory(atPath: directory, withIntermediateDirectories: true)
        var clusterOptions = LocalCluster.Options()
        clusterOptions.settings = serverSettings
        let reservation = options.hugePages ? HugePages.reserve(forBuffersOf: bufferMebibytes) : nil
        let cluster: LocalCluster
        do {
            cluster = try await LocalCluster.start(at: "\(directory)/cluster", clusterOptions)
        } catch {
            reservation?.release()
            throw error
        }
        reservation?.release()
        do {
            let filling = Population.fillSiwad(0) + Population.storeNotifications(0, people: 0)
            let schema = digest(try await output(of: siwad, ["migrate", "sql"]) + filling.joined())
            let bench = Workbench(directory: directory, siwad: siwad, schema: schema, cluster: cluster)
            SharedMemory.populate(of: bench.server.processID)
            try await bench.dropStaleBases()
            let result = try await body(bench)
            await cluster.stop()
            return result
        } catch {
            await cluster.stop()
            throw error
        }
    }

    /// How to connect to a database.
    func conninfo(_ database: String) -> String { cluster.conninfo(database: database) }

    /// A PostgreSQL URI for programs that don't read libpq's other form.
    func uri(_ database: String) -> String {
        "postgresql://postgres@/\(database)?host=\(cluster.socketDirectory)"
    }

    /// The server with its backends.
    var server: ProcessFigures {
        let lines = Machine.read("\(cluster.directory)/data/postmaster.pid").split(separator: "\n")
        return ProcessFigures(processID: lines.first.flatMap { Int32($0) } ?? 0)
    }

    /// Executes statements, and returns the first value of the last one's result.
    @discardableResult
    func run(_ sql: String, on database: String = "postgres") async throws -> String? {
        var settings = try ConnectionSettings(conninfo: conninfo(database), applicationName: "benchmarks")
        settings.statementTimeout = .seconds(3_600)
        let connection = try await PostgresConnection.connect(settings)
        do {
            let value = try await connection.withSession(deadline: .seconds(3_600)) { session throws(PostgresError) in
                // The peers' tables and the extensions are there.
                try session.execute(script: "SET search_path = public")
                let rows = try session.execute(Statement(once: sql))
                return rows.count > 0 ? try rows.optionalString(0, 0) : nil
            }
            await connection.close()
            return value
        } catch {
            await connection.close()
            throw error
        }
    }

    /// Makes a database once, under a temporary name until it is complete.
    func database(_ name: String, _ fill: (_ name: String) async throws -> Void) async throws {
        guard try await run("SELECT datname::text FROM pg_database WHERE datname = '\(name)'") == nil else { return }
        try await run("DROP DATABASE IF EXISTS making WITH (FORCE)")
        try await run("CREATE DATABASE making")
        // What fills it is known to fit: looking up each foreign key would take most of the time.
        try await run("ALTER DATABASE making SET session_replication_role = replica")
        try await fill("making")
        try await run("ALTER DATABASE making RESET session_replication_role")
        try await run("VACUUM (ANALYZE, FREEZE)", on: "making")
        try await run("CREATE EXTENSION IF NOT EXISTS pg_prewarm", on: "making")
        try await run("ALTER DATABASE making RENAME TO \(name)")
    }

    /// Fresh copies of databases, under new names: their tables in memory as far as they fit, right after a checkpoint. The
    /// same start for every run.
    func copy(_ copies: [(base: String, name: String)]) async throws {
        // All that is left of others goes first, out of the memory too.
        try await drop("datname ~ '^run'")
        for (base, name) in copies {
            try await run("CREATE DATABASE \(name) TEMPLATE \(base) STRATEGY FILE_COPY")
            guard base.hasPrefix("siwad_") else { continue }
            // Done once an hour or a day; within a run, its few seconds would bear the whole of it.
            try await run(
                "INSERT INTO siwa.maintenance (task, finished_at) SELECT t, now() FROM unnest('{erasure,sessions}'::text[]) AS t",
                on: name
            )
        }
        try await warm(copies.map(\.name))
    }

    /// Reads databases' tables and indexes into memory, and makes a checkpoint.
    ///
    /// Where they don't all fit, nothing is read that would drive out what was read before: of each database comes first
    /// what every notification needs, then sessions, which some need, then what no notification of a known person is
    /// looked up by, and past months. A tenth of the memory stays free for what a run adds.
    func warm(_ names: [String]) async throws {
        let list = names.map { "'\($0)'" }.joined(separator: ", ")
        let total = "(SELECT sum(pg_database_size(d.oid)) FROM pg_database AS d WHERE d.datname IN (\(list)))"
        for name in names {
            try await run(
                """
                SELECT sum(pg_prewarm(r.oid))::text
                FROM (
                    SELECT
                        c.oid,
                        sum(pg_relation_size(c.oid)) OVER (
                            ORDER BY
                                c.relname LIKE 'notifications_y%',
                                c.relname IN (
                                    'accounts_email', 'accounts_pkey', 'accounts_person_is_unique',
                                    'account_sessions_pkey', 'account_sessions_created_at'
                                ),
                                c.relname LIKE 'account_sessions%',
                                c.relname DESC
                        ) AS size_so_far
                    FROM pg_class AS c
                    JOIN pg_namespace AS n ON n.oid = c.relnamespace
                    WHERE n.nspname IN ('siwa', 'public') AND c.relkind IN ('r', 'i')
                    OFFSET 0
                ) AS r
                WHERE r.size_so_far
                    <= 0.9 * \(Self.bufferMebibytes << 20) * pg_database_size(current_database()) / \(total)
                """,
                on: name
            )
        }
        try await run("CHECKPOINT")
        try readLog()
        try await settle()
    }

    /// Reads the files that the server will write its log to, so that the kernel has a page for each of theirs: in a virtual
    /// machine that gives free memory back to its host, a page that has to be got first costs more than what is written
    /// to it.
    private func readLog() throws {
        let log = "\(cluster.directory)/data/pg_wal"
        // Only the log's own files have names of so many digits.
        for name in try FileManager.default.contentsOfDirectory(atPath: log) where name.count == 24 {
            // One that the server renames meanwhile is read under its other name, or the next time.
            _ = try? Data(contentsOf: URL(filePath: "\(log)/\(name)"))
        }
    }

    /// Waits until the disk is through with what the copy left it to do (a dropped database is discarded in the
    /// background, for seconds): a commit takes no longer than it did at its fastest since. At most half a minute.
    private func settle() async throws {
        let clock = ContinuousClock()
        let start = clock.now
        var best = Duration.seconds(3_600)
        var steady = 0
        while steady < 5, clock.now - start < .seconds(30) {
            let taken = try await clock.measure {
                try await run(
                    """
                    DO $$ BEGIN
                        FOR n IN 1..50 LOOP PERFORM pg_logical_emit_message(true, 'benchmarks', 'settle'); COMMIT; END LOOP;
                    END $$
                    """
                )
            }
            best = min(best, taken)
            steady = clock.now - start > .seconds(2) && taken < best * 1.3 ? steady + 1 : 0
        }
    }

    /// The database of a number of people that siwad's runs begin from, with so many notifications stored before.
    func siwadBase(_ people: Int, stored: Int = 0) -> String { "siwad_\(schema)_\(people)_\(stored)" }

    /// Drops the bases of other schemas, gigabytes that no run begins from any more.
    private func dropStaleBases() async throws {
        try await drop("datname ~ '^siwad_.+_' AND datname !~ '^siwad_\(schema)_'")
    }

    private func drop(_ condition: String) async throws {
        while let name = try await run("SELECT min(datname)::text FROM pg_database WHERE \(condition)") {
            try await run("DROP DATABASE \(name) WITH (FORCE)")
        }
    }

    /// A short name that is always the same for the same text (FNV-1a).
    private static func digest(_ text: String) -> String {
        var hash: UInt64 = 0xcbf2_9ce4_8422_2325
        for byte in text.utf8 { hash = (hash ^ UInt64(byte)) &* 0x100_0000_01b3 }
        return String(hash, radix: 36)
    }

    static func absolute(_ path: String) -> String {
        path.hasPrefix("/") ? path : FileManager.default.currentDirectoryPath + "/" + path
    }
}

/// Why a measurement could not be made, with the next step.
struct BenchmarkError: Error, CustomStringConvertible {
    let description: String

    init(_ description: String) { self.description = description }
}
