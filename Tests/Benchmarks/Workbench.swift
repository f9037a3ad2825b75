import FoundationEssentials
import LocalPostgres
import Postgres

/// A PostgreSQL cluster for measurements, as durable as one in production, with databases that the runs copy.
struct Workbench {
    /// Absolute path of the working directory.
    let directory: String
    /// Absolute path of the siwad executable.
    let siwad: String
    /// Identifies the schema and the way it was filled, so that a base of another schema is not used.
    private let schema: String
    private let cluster: LocalCluster

    /// Settings for a database of this size on a server of its own. fsync, synchronous_commit and full_page_writes keep
    /// their defaults, which are on.
    private static let tunedSettings = [
        "shared_buffers": "\(Machine.mebibytes * 2 / 5)MB", "max_wal_size": "16GB", "min_wal_size": "2GB",
        "checkpoint_timeout": "30min", "maintenance_work_mem": "512MB",
    ]

    /// Runs `body` while the cluster runs.
    static func with<R>(_ options: BenchmarkOptions, _ body: (Workbench) async throws -> R) async throws -> R {
        let directory = absolute(options.work)
        let siwad = absolute(options.siwad)
        guard FileManager.default.isExecutableFile(atPath: siwad) else {
            throw BenchmarkError("\(siwad) does not exist: run swift build -c release --product siwad")
        }
        try FileManager.default.createDirectory(atPath: directory, withIntermediateDirectories: true)
        var clusterOptions = LocalCluster.Options()
        if options.tuned { clusterOptions.settings = tunedSettings }
        let cluster = try await LocalCluster.start(at: "\(directory)/cluster", clusterOptions)
        do {
            let filling = Population.fillSiwad(0) + Population.storeNotifications(0, people: 0)
            let schema = digest(try await output(of: siwad, ["migrate", "sql"]) + filling.joined())
            let bench = Workbench(directory: directory, siwad: siwad, schema: schema, cluster: cluster)
            try await bench.dropStaleBases()
            let result = try await body(bench)
            await cluster.stop()
            return result
        } catch {
            await cluster.stop()
            throw error
        }
    }

    func conninfo(_ database: String) -> String { cluster.conninfo(database: database) }

    /// A PostgreSQL URI for programs that don't read libpq's other form.
    func uri(_ database: String) -> String {
        "postgresql://postgres@/\(database)?host=\(cluster.socketDirectory)"
    }

    /// The PostgreSQL server with its backends.
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
                // The peers' tables are in this schema.
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

    /// Creates a database unless it exists, under a temporary name until it is complete.
    func database(_ name: String, _ fill: (_ name: String) async throws -> Void) async throws {
        guard try await run("SELECT datname::text FROM pg_database WHERE datname = '\(name)'") == nil else { return }
        try await run("DROP DATABASE IF EXISTS making WITH (FORCE)")
        try await run("CREATE DATABASE making")
        // Checking each foreign key would take most of the time, and the rows are known to be consistent.
        try await run("ALTER DATABASE making SET session_replication_role = replica")
        try await fill("making")
        try await run("ALTER DATABASE making RESET session_replication_role")
        try await run("VACUUM (ANALYZE, FREEZE)", on: "making")
        try await run("ALTER DATABASE making RENAME TO \(name)")
    }

    /// Makes `name` a fresh copy of the database `base`.
    func copy(_ base: String, to name: String) async throws {
        try await run("DROP DATABASE IF EXISTS \(name) WITH (FORCE)")
        try await run("CREATE DATABASE \(name) TEMPLATE \(base) STRATEGY FILE_COPY")
        guard base.hasPrefix("siwad_") else { return }
        // siwad does these once an hour or a day. In a run of seconds, they would count far too much.
        try await run(
            "INSERT INTO siwa.maintenance (task, finished_at) SELECT t, now() FROM unnest('{erasure,sessions}'::text[]) AS t",
            on: name
        )
    }

    /// The name of siwad's database with a number of people and of stored notifications.
    func siwadBase(_ people: Int, stored: Int = 0) -> String { "siwad_\(schema)_\(people)_\(stored)" }

    /// Drops gigabytes of databases with an older schema, which no run uses any more.
    private func dropStaleBases() async throws {
        try await drop("datname ~ '^siwad_.+_' AND datname !~ '^siwad_\(schema)_'")
    }

    private func drop(_ condition: String) async throws {
        while let name = try await run("SELECT min(datname)::text FROM pg_database WHERE \(condition)") {
            try await run("DROP DATABASE \(name) WITH (FORCE)")
        }
    }

    /// A short name derived from a text (FNV-1a).
    private static func digest(_ text: String) -> String {
        var hash: UInt64 = 0xcbf2_9ce4_8422_2325
        for byte in text.utf8 { hash = (hash ^ UInt64(byte)) &* 0x100_0000_01b3 }
        return String(hash, radix: 36)
    }

    static func absolute(_ path: String) -> String {
        path.hasPrefix("/") ? path : FileManager.default.currentDirectoryPath + "/" + path
    }
}

/// Why a measurement failed, with the next step.
struct BenchmarkError: Error, CustomStringConvertible {
    let description: String

    init(_ description: String) { self.description = description }
}
