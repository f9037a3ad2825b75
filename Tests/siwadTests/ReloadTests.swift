import AppleTokens
import Glibc
import Ingest
import Postgres
import Settings
import StoreTestSupport
import Terminal
import TestSupport
import Testing

@testable import siwad

@Suite("Reloading the configuration")
struct ReloadTests {
    private static let apps = "AAAAAAAAAA/com.example.one"
    private static let moreApps = "AAAAAAAAAA/com.example.one,BBBBBBBBBB/com.example.late"

    /// Runs a test with a daemon whose configuration is a file, and these variables.
    private func withDaemon(
        _ variables: [String: String] = [:],
        _ body: (Daemon, SettingsSources, _ write: (String) throws -> Void) async throws -> Void
    ) async throws {
        try await TestDatabase.with(.siwa) { database in
            let directory = try TemporaryDirectory()
            let write = { (text: String) in try directory.write(Array(text.utf8), to: "siwad.yaml") }
            try write("apps: \(Self.apps)\n")
            let sources = SettingsSources(
                environment: variables.merging(["SIWAD_DATABASE_URL": database.conninfo]) { $1 },
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

    @Test("A changed list of apps applies to new notifications, and is written to the database.")
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

    @Test("A setting in a variable stays at a reload, whatever the file says.")
    func variable() async throws {
        try await withDaemon(["SIWAD_APPS": Self.apps]) { daemon, sources, write in
            try write("apps: \(Self.moreApps)\nclock_leeway: 1m\n")
            await daemon.reload(from: sources)
            #expect(daemon.intake.policy.leeway == .seconds(60))
            #expect(daemon.intake.policy.audiences == (try AudienceMap(parsing: Self.apps)))
            #expect(try await clients(daemon) == ["com.example.one"])
        }
    }

    @Test("A reload puts back a client id that was removed, also if no setting has changed.")
    func removedClient() async throws {
        try await withDaemon { daemon, sources, _ in
            try await daemon.pool.withSession { session throws(PostgresError) in
                _ = try session.execute(once: "DELETE FROM siwa.clients WHERE client_id = 'com.example.one'")
            }
            #expect(try await clients(daemon).isEmpty)
            await daemon.reload(from: sources)
            #expect(try await clients(daemon) == ["com.example.one"])
        }
    }

    @Test(
        "A malformed configuration changes nothing.",
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

    @Test("With a spool, siwad starts while PostgreSQL is unavailable.")
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

    @Test("A second daemon on the same spool is a configuration error.")
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

    @Test("A directory that other users can write, or replace through a parent, is a configuration error.")
    func writableDirectory() async throws {
        let parent = try TemporaryDirectory()
        var environment = environment
        environment["SIWAD_SPOOL_DIRECTORY"] = parent.file("spool")
        try #require(mkdir(parent.file("spool"), 0o700) == 0 && chmod(parent.file("spool"), 0o777) == 0)
        let directory = await siwad("serve", environment: environment)
        #expect(directory.status == .configuration)
        #expect(directory.errors.contains("others can write it"))
        try #require(chmod(parent.file("spool"), 0o700) == 0 && chmod(parent.path, 0o777) == 0)
        let replaceable = await siwad("serve", environment: environment)
        #expect(replaceable.status == .configuration)
        #expect(replaceable.errors.contains(parent.path) && replaceable.errors.contains("others can write it"))
        #expect(try TemporaryDirectory.names(at: parent.file("spool")).isEmpty)
    }

    @Test("A directory with other files is a configuration error, and stays unchanged.")
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
