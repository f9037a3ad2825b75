import Glibc
import Postgres
import StoreTestSupport
import TestSupport
import Testing

@testable import siwad

@Suite("Warnings about exposed secrets")
struct ExposureTests {
    // MARK: - The process list

    @Test(
        "Every command warns of a password in its arguments.",
        arguments: [
            "postgresql://u:sekret@127.0.0.1:1/db", "host=127.0.0.1 port=1 password=sekret",
            "postgresql://u@127.0.0.1:1/db?sslpassword=sekret",
        ]
    )
    func passwordInArguments(url: String) async {
        for command in [["config"], ["accounts", "list"], ["migrate"], ["doctor"]] {
            let result = await siwadCommand(command + ["--database-url", url])
            let warnings = result.errors.split(separator: "\n").filter { $0.contains("process list") }
            #expect(warnings.count == 1, "\(command): \(result.errors)")
            #expect(warnings.first?.contains("SIWAD_DATABASE_URL_FILE") == true)
            #expect(!result.errors.contains("sekret") && !result.output.contains("sekret"))
        }
    }

    @Test("A URL without a password, or outside the arguments, causes no warning.")
    func noPasswordInArguments() async {
        let url = "postgresql://u@127.0.0.1:1/db?sslmode=verify-full"
        let harmless = await siwad("config", "--database-url", url)
        #expect(harmless.errors == "")
        let elsewhere = await siwad("config", environment: ["SIWAD_DATABASE_URL": "postgresql://u:sekret@h/db"])
        #expect(elsewhere.errors == "")
    }

    // MARK: - Files

    /// The lines of a check of `siwad doctor`, without their marks.
    private func findings(_ check: String, _ environment: [String: String], _ arguments: String...) async -> [String] {
        let all = environment.merging(["SIWAD_KEYS_URL": "file:///nowhere"]) { given, _ in given }
        let result = await siwadCommand(["doctor"] + arguments, environment: all)
        return result.lines.filter { $0.dropFirst(2).hasPrefix("\(check) ") }
    }

    @Test("The doctor warns of a file with a secret that other users can read.", arguments: [0o644, 0o604, 0o602])
    func readableFiles(mode: mode_t) async throws {
        let directory = try TemporaryDirectory()
        let names = ["tls-key.pem", "database-url", "siwad.yaml"]
        try directory.write(Array(LocalhostCertificate.pem.utf8), to: "tls-certificate.pem")
        try directory.write(Array(LocalhostCertificate.key.utf8), to: "tls-key.pem")
        try directory.write(Array("postgresql://u:sekret@127.0.0.1:1/db\n".utf8), to: "database-url")
        try directory.write(Array("database_url: postgresql://u:sekret@127.0.0.1:1/db\n".utf8), to: "siwad.yaml")
        for name in names { try #require(chmod(directory.file(name), 0o640) == 0) }
        let tls = [
            "SIWAD_TLS_CERTIFICATE": directory.file("tls-certificate.pem"),
            "SIWAD_TLS_KEY": directory.file("tls-key.pem"),
        ]
        let url = ["SIWAD_DATABASE_URL_FILE": directory.file("database-url")]
        let config = directory.file("siwad.yaml")
        func lines() async -> [[String]] {
            [
                await findings("files", tls), await findings("files", url),
                await findings("files", [:], "--config", config),
            ]
        }
        for found in await lines() { #expect(found.map { $0.first } == ["✓"], "\(found)") }
        for name in names { try #require(chmod(directory.file(name), mode) == 0) }
        for (found, name) in zip(await lines(), names) {
            #expect(found.map { $0.first } == ["⚠"], "\(found)")
            #expect(found.first?.contains(directory.file(name)) == true, "\(found)")
            #expect(found.first?.contains("chmod") == true, "\(found)")
        }
    }

    @Test("The doctor does not warn of a readable configuration file without a secret.")
    func harmlessConfiguration() async throws {
        let directory = try TemporaryDirectory()
        try directory.write(Array("database_url: postgresql://u@127.0.0.1:1/db\n".utf8), to: "siwad.yaml")
        try #require(chmod(directory.file("siwad.yaml"), 0o644) == 0)
        #expect(await findings("files", [:], "--config", directory.file("siwad.yaml")).map { $0.first } == ["✓"])
    }

    // MARK: - Networks

    @Test(
        "The doctor warns of an operations endpoint that other machines can reach.",
        arguments: [
            ("127.0.0.1", true), ("127.8.9.10", true), ("localhost", true), ("[::1]", true), ("0.0.0.0", false),
            ("[::]", false), ("192.0.2.1", false), ("127.0.0.1.example.com", false), ("localhost.example.com", false),
        ]
    )
    func operations(host: String, isPrivate: Bool) async {
        let found = await findings("operations", ["SIWAD_OPERATIONS_LISTEN": "\(host):1"])
        #expect(found.map { $0.first } == [isPrivate ? "✓" : "⚠"], "\(found)")
    }

    @Test("The doctor accepts a local database without TLS.")
    func localDatabase() async throws {
        try await TestDatabase.with { database in
            let found = await findings("database-tls", ["SIWAD_DATABASE_URL": database.conninfo])
            #expect(found.map { $0.first } == ["✓"], "\(found)")
        }
    }

    // MARK: - The database

    @Test("The doctor warns if every role may create objects in the schema public.")
    func publicSchema() async throws {
        try await TestDatabase.with(.siwa) { database in
            func found() async -> [String] {
                await findings("public-schema", ["SIWAD_DATABASE_URL": database.conninfo])
            }
            func run(_ script: String) async throws {
                let connection = try await PostgresConnection.connect(database.settings)
                try await connection.withSession { session throws(PostgresError) in
                    try session.execute(script: script)
                }
                await connection.close()
            }
            try await run("REVOKE CREATE ON SCHEMA public FROM PUBLIC")
            #expect(await found().map { $0.first } == ["✓"])
            try await run("GRANT CREATE ON SCHEMA public TO PUBLIC")
            let open = await found()
            #expect(open.map { $0.first } == ["⚠"], "\(open)")
            #expect(open.first?.contains("REVOKE CREATE ON SCHEMA public FROM PUBLIC") == true, "\(open)")
            try await run("DROP SCHEMA public CASCADE")
            #expect(await found().map { $0.first } == ["✓"])
        }
    }
}
