import AppleTokens
import Ingest
import Postgres
import Settings
import StoreTestSupport
import Terminal
import TestSupport
import Testing

@testable import siwad

@Suite("Reading the configuration anew")
struct ReloadTests {
    private static let apps = "AAAAAAAAAA/com.example.one"
    private static let moreApps = "AAAAAAAAAA/com.example.one,BBBBBBBBBB/com.example.late"

    /// Runs a test with a daemon whose configuration is a file.
    private func withDaemon(
        _ body: (Daemon, SettingsSources, _ write: (String) throws -> Void) async throws -> Void
    ) async throws {
        try await TestDatabase.with(.siwa) { database in
            let directory = try TemporaryDirectory()
            let write = { (text: String) in try directory.write(Array(text.utf8), to: "siwad.yaml") }
            try write("apps: \(Self.apps)\n")
            let sources = SettingsSources(
                environment: ["SIWAD_DATABASE_URL": database.conninfo],
                configurationFile: directory.file("siwad.yaml")
            )
            let daemon = try Daemon(try Configuration(from: sources))
            do {
                try await daemon.prepare()
                try await daemon.announceApps()
                try await body(daemon, sources, write)
            } catch {
                await daemon.close()
                throw error
            }
            await daemon.close()
        }
    }

    private func clients(_ daemon: Daemon) async throws -> [String] {
        try await daemon.pool.withSession { session throws(PostgresError) in
            let rows = try session.execute(
                Statement(
                    once: """
                        SELECT client_id FROM siwa.clients
                        WHERE client_id IN ('com.example.one', 'com.example.late')
                        ORDER BY client_id
                        """
                )
            )
            var clients: [String] = []
            for row in 0..<rows.count { clients.append(try rows.string(row, 0)) }
            return clients
        }
    }

    @Test("Other apps are accepted from then on, and the database knows them.")
    func apps() async throws {
        try await withDaemon { daemon, sources, write in
            #expect(try await clients(daemon) == ["com.example.one"])
            try write("apps: \(Self.moreApps)\nclock_leeway: 1m\n")
            await daemon.reload(from: sources)
            #expect(daemon.intake.policy.audiences == (try AudienceMap(parsing: Self.moreApps)))
            #expect(daemon.intake.policy.leeway == .seconds(60))
            #expect(try await clients(daemon) == ["com.example.late", "com.example.one"])
        }
    }

    @Test(
        "What makes no sense changes nothing.",
        arguments: [
            "apps: nonsense\n", "apps: [\n", "", "apps: \(moreApps)\nlog_level: shouting\n", "aps: \(moreApps)\n",
        ]
    )
    func nonsense(_ text: String) async throws {
        try await withDaemon { daemon, sources, write in
            try write(text)
            await daemon.reload(from: sources)
            #expect(daemon.intake.policy.audiences == (try AudienceMap(parsing: Self.apps)))
            #expect(try await clients(daemon) == ["com.example.one"])
        }
    }
}

@Suite("Starting with a spool")
struct SpoolStartTests {
    private let environment = ["SIWAD_APPS": "AAAAAAAAAA/com.example.one", "SIWAD_DATABASE_URL": "host=/nowhere"]

    @Test("PostgreSQL's being away stops no start that has a spool.")
    func withoutDatabase() async throws {
        let directory = try TemporaryDirectory()
        var environment = environment
        let without = try Daemon(try Configuration(from: SettingsSources(environment: environment)))
        await #expect(throws: PostgresError.self) { try await without.prepare() }
        await without.close()
        environment["SIWAD_SPOOL_DIRECTORY"] = directory.file("spool")
        let daemon = try Daemon(try Configuration(from: SettingsSources(environment: environment)))
        try await daemon.prepare()
        await daemon.close()
    }

    @Test("A second daemon on the same spool is a configuration error that says so.")
    func secondDaemon() async throws {
        let directory = try TemporaryDirectory()
        var environment = environment
        environment["SIWAD_SPOOL_DIRECTORY"] = directory.path
        let daemon = try Daemon(try Configuration(from: SettingsSources(environment: environment)))
        let second = await siwad("serve", environment: environment)
        #expect(second.status == .configuration)
        #expect(
            second.errors
                == "siwad: SIWAD_SPOOL_DIRECTORY: another siwad uses the spool directory \(directory.path); "
                + "give each daemon one of its own\n"
        )
        await daemon.close()
    }

    @Test("A directory of other files is a configuration error that says so, and nothing in it changes.")
    func foreignDirectory() async throws {
        let directory = try TemporaryDirectory()
        try directory.write(Array("apps: []".utf8), to: "siwad.yaml")
        var environment = environment
        environment["SIWAD_SPOOL_DIRECTORY"] = directory.path
        let answer = await siwad("serve", environment: environment)
        #expect(answer.status == .configuration)
        #expect(answer.errors.contains("it is not empty and has no file .siwad-spool"))
        #expect(try directory.names == ["siwad.yaml"])
    }
}
