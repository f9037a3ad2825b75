import Glibc
import LocalPostgres
import Postgres
import Subprocess
import Testing

/// Runs a test with a new directory, which is removed afterwards.
func withDirectory(_ body: (String) async throws -> Void) async throws {
    let directory = "/tmp/siwad-tests-\(String(UInt64.random(in: 0...UInt64.max), radix: 36))"
    try #require(mkdir(directory, 0o755) == 0)
    do {
        try await body(directory)
    } catch {
        Issue.record(error)
    }
    _ = try await run(.name("rm"), arguments: ["-rf", directory], output: .discarded)
}

/// Executes statements on a cluster.
func execute(_ sql: String, _ cluster: LocalCluster) async throws {
    try await execute(sql, conninfo: cluster.conninfo())
}

func execute(_ sql: String, conninfo: String) async throws {
    let settings = try ConnectionSettings(conninfo: conninfo, applicationName: "tests")
    let connection = try await PostgresConnection.connect(settings)
    try await connection.withSession { session throws(PostgresError) in try session.execute(script: sql) }
    await connection.close()
}

/// The code of the error when connecting; nil if it succeeds.
func postgresError(_ conninfo: String) async -> PostgresError.Code? {
    do {
        try await execute("SELECT 1", conninfo: conninfo)
        return nil
    } catch let error as PostgresError {
        return error.code
    } catch {
        Issue.record(error)
        return nil
    }
}

/// One line of a file, counted from 1.
func line(_ number: Int, of file: String) async throws -> String? {
    let output = try await run(.name("sed"), arguments: ["-n", "\(number)p", file], output: .string(limit: 4096))
    return output.standardOutput.split(separator: "\n").first.map(String.init)
}

func permissions(_ path: String) throws -> mode_t {
    var status = stat()
    try #require(stat(path, &status) == 0)
    return status.st_mode & 0o777
}
