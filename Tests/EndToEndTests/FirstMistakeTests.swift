import Glibc
import LocalPostgres
import Postgres
import StoreTestSupport
import TestSupport
import Testing

@Suite("Mistakes at the first start", .timeLimit(.minutes(10)))
struct FirstMistakeTests {
    /// Starts a daemon that can't run, and expects one line with these words and this exit code.
    private func expect(
        _ status: Int32,
        _ words: [String],
        _ environment: [String: String],
        _ arguments: [String] = ["serve"],
        sourceLocation: SourceLocation = #_sourceLocation
    ) async throws {
        let result = try await siwad(arguments, environment: environment)
        #expect(result.status == status, "\(result.errors)", sourceLocation: sourceLocation)
        #expect(result.output.isEmpty, sourceLocation: sourceLocation)
        // The log is JSON; the error is the last line, and the only one that is not a JSON record.
        let lines = result.errorLines.filter { !$0.hasPrefix("{") }
        #expect(lines.count == 1, "\(result.errors)", sourceLocation: sourceLocation)
        for word in words {
            let line = lines.last ?? ""
            #expect(line.contains(word), "“\(word)” is not in: \(line)", sourceLocation: sourceLocation)
        }
    }

    @Test("No database is configured.")
    func noDatabase() async throws {
        try await expect(78, ["SIWAD_DATABASE_URL"], ["SIWAD_APPS": DaemonFixture.apps])
    }

    @Test("No server listens at the database's address.")
    func noServer() async throws {
        let environment = ["SIWAD_APPS": DaemonFixture.apps, "SIWAD_DATABASE_URL": "host=/nonexistent dbname=siwa"]
        try await expect(69, ["SIWAD_DATABASE_URL", "/nonexistent"], environment)
    }

    @Test("The database's URL can't be parsed; the error does not repeat it.")
    func malformedURL() async throws {
        let environment = ["SIWAD_APPS": DaemonFixture.apps, "SIWAD_DATABASE_URL": "hots=localhost password=secret"]
        try await expect(78, ["SIWAD_DATABASE_URL", "hots"], environment)
        let port = ["SIWAD_APPS": DaemonFixture.apps, "SIWAD_DATABASE_URL": "postgresql://localhost:siwad/db"]
        try await expect(78, ["SIWAD_DATABASE_URL", "port"], port)
        #expect(try await !siwad(["serve"], environment: environment).errors.contains("secret"))
    }

    @Test("The password is wrong; the error does not repeat it.")
    func wrongPassword() async throws {
        let cluster = try await LocalCluster.startTemporary()
        let settings = try ConnectionSettings(conninfo: cluster.conninfo(), applicationName: "tests")
        let connection = try await PostgresConnection.connect(settings)
        try await connection.withSession { session throws(PostgresError) in
            try session.execute(
                script: """
                    SET password_encryption = 'scram-sha-256';
                    CREATE ROLE app LOGIN PASSWORD 'correct horse';
                    COPY (VALUES ('local all postgres trust'), ('local all all scram-sha-256'))
                        TO '\(cluster.directory)/data/pg_hba.conf';
                    SELECT pg_reload_conf();
                    """
            )
        }
        await connection.close()
        for password in ["", "password=battery-staple"] {
            let conninfo = cluster.conninfo() + " user=app \(password)"
            let environment = ["SIWAD_APPS": DaemonFixture.apps, "SIWAD_DATABASE_URL": conninfo]
            // Once the server refuses a connection, it has read its rules.
            try await eventually("the server to ask for a password") {
                try await siwad(["serve"], environment: environment).errors.contains("password")
            }
            try await expect(69, ["password", "SIWAD_DATABASE_URL"], environment)
            #expect(try await !siwad(["serve"], environment: environment).errors.contains("battery-staple"))
        }
        await cluster.stop()
    }

    @Test("The server has no such database.")
    func noSuchDatabase() async throws {
        try await DaemonFixture.with { fixture in
            let settings = ["SIWAD_DATABASE_URL": fixture.conninfo + " dbname=nowhere"]
            try await expect(69, ["nowhere", "SIWAD_DATABASE_URL"], fixture.environment(settings))
        }
    }

    @Test("The database is not migrated.")
    func notMigrated() async throws {
        try await TestDatabase.with { database in
            let environment = ["SIWAD_APPS": DaemonFixture.apps, "SIWAD_DATABASE_URL": database.conninfo]
            try await expect(78, ["not migrated", "siwad migrate"], environment)
            let list = try await siwad(["accounts", "list"], environment: environment)
            #expect(list.status == 78)
            #expect(try await siwad(["migrate"], environment: environment).status == 0)
        }
    }

    @Test("The database was migrated by a later siwad.")
    func newerSchema() async throws {
        try await DaemonFixture.with { fixture in
            try await fixture.run(
                "INSERT INTO siwa.schema_migrations (number, name, checksum) VALUES (9999, 'tomorrow', 'ffff')"
            )
            try await expect(78, ["newer", "9999", "install"], fixture.environment())
            try await expect(78, ["newer", "9999", "install"], fixture.environment(), ["sessions", "list"])
        }
    }

    @Test("The database was migrated by an earlier siwad.", arguments: [["serve"], ["accounts", "list"], ["tail"]])
    func olderSchema(command: [String]) async throws {
        try await DaemonFixture.with { fixture in
            try await fixture.run("DELETE FROM siwa.schema_migrations WHERE number > 5")
            try await expect(78, ["the database misses", "siwad migrate"], fixture.environment(), command)
        }
    }

    @Test("No apps are configured.")
    func noApps() async throws {
        try await DaemonFixture.with { fixture in
            try await expect(78, ["SIWAD_APPS", "TEAMID/"], fixture.environment(["SIWAD_APPS": ""]))
        }
    }

    @Test(
        "An app is malformed.",
        arguments: ["com.example.app", "SHORT/com.example.app", "A1B2C3D4E5/", "A1B2C3D4E5/a,"]
    )
    func malformedApp(apps: String) async throws {
        try await expect(78, ["SIWAD_APPS"], ["SIWAD_APPS": apps, "SIWAD_DATABASE_URL": "dbname=siwa"])
    }

    @Test("The port is in use.", arguments: ["SIWAD_LISTEN", "SIWAD_OPERATIONS_LISTEN"])
    func portTaken(key: String) async throws {
        try await DaemonFixture.with { fixture in
            let other = try SilentServer()
            let environment = fixture.environment([key: "127.0.0.1:\(other.port)"])
            // Not 78, after which a service manager gives up: the port may be free soon.
            try await expect(1, [key, "127.0.0.1:\(other.port)", "in use"], environment)
        }
    }

    @Test("The machine doesn't have the address, or the host name is unknown.")
    func addressMissing() async throws {
        try await DaemonFixture.with { fixture in
            let address = fixture.environment(["SIWAD_LISTEN": "192.0.2.1:0"])
            try await expect(1, ["SIWAD_LISTEN", "192.0.2.1:0", "no such address"], address)
            let host = fixture.environment(["SIWAD_OPERATIONS_LISTEN": "nowhere..invalid:0"])
            try await expect(1, ["SIWAD_OPERATIONS_LISTEN", "the host name nowhere..invalid is not known"], host)
        }
    }

    @Test("A setting in the environment is misspelled.")
    func unknownKey() async throws {
        let environment = ["SIWAD_APSP": "x", "SIWAD_DATABASE_URL": "dbname=siwa"]
        try await expect(78, ["SIWAD_APSP", "SIWAD_APPS"], environment)
    }

    @Test("A setting in the file is misspelled.", arguments: ["lisen: 127.0.0.1:0\n", "{\"lisen\": \"127.0.0.1:0\"}"])
    func unknownKeyInFile(text: String) async throws {
        try await TemporaryDirectory.with { directory in
            let file = try directory.write("siwad.yaml", text)
            try await expect(78, [file, "lisen", "listen"], [:], ["serve", "--config", file])
        }
    }

    @Test("A value is malformed.")
    func malformedValue() async throws {
        try await expect(78, ["SIWAD_SHUTDOWN_GRACE", "soon"], ["SIWAD_SHUTDOWN_GRACE": "soon"])
        try await expect(78, ["SIWAD_LISTEN", "nowhere"], ["SIWAD_LISTEN": "nowhere"])
        try await expect(78, ["SIWAD_KEYS_URL"], ["SIWAD_KEYS_URL": "http://appleid.apple.com/auth/keys"])
    }

    @Test("Other users can write the spool directory.")
    func writableSpool() async throws {
        let directory = try TemporaryDirectory()
        let spool = directory.file("spool")
        try #require(mkdir(spool, 0o700) == 0 && chmod(spool, 0o777) == 0)
        try await expect(78, ["SIWAD_SPOOL_DIRECTORY", spool, "others can write it"], spooling(to: spool))
        #expect(try TemporaryDirectory.names(at: spool).isEmpty, "nothing is changed")
    }

    @Test("Other users can replace the spool directory, since they can write its parent.", arguments: [true, false])
    func replaceableSpool(exists: Bool) async throws {
        let directory = try TemporaryDirectory()
        let (parent, spool) = (directory.file("parent"), directory.file("parent/spool"))
        try #require(mkdir(parent, 0o700) == 0 && chmod(parent, 0o777) == 0)
        if exists { try #require(mkdir(spool, 0o700) == 0) }
        try await expect(78, ["SIWAD_SPOOL_DIRECTORY", spool, parent, "others can write it"], spooling(to: spool))
        #expect(try TemporaryDirectory.names(at: parent) == (exists ? ["spool"] : []), "nothing is changed")
    }

    /// Settings with which siwad ends with another code if it accepts the directory: no machine has the address (RFC 5737).
    private func spooling(to directory: String) -> [String: String] {
        [
            "SIWAD_APPS": DaemonFixture.apps, "SIWAD_DATABASE_URL": "host=/nonexistent",
            "SIWAD_SPOOL_DIRECTORY": directory,
            "SIWAD_LISTEN": "192.0.2.1:1",
        ]
    }

    @Test("A flag is misspelled.")
    func unknownFlag() async throws {
        try await expect(64, ["--lisen", "--help"], [:], ["serve", "--lisen", "x"])
    }

    @Test("The configuration file is missing or malformed.")
    func unreadableFile() async throws {
        try await TemporaryDirectory.with { directory in
            let missing = directory.path + "/siwad.yaml"
            try await expect(78, ["--config", missing], [:], ["serve", "--config", missing])
            try await expect(78, ["--config", directory.path], [:], ["serve", "--config", directory.path])
            let broken = try directory.write("broken.yaml", "apps: [\n")
            try await expect(78, [broken, "line"], [:], ["serve", "--config", broken])
        }
    }

    @Test("The file for a secret is missing.")
    func unreadableSecret() async throws {
        let environment = ["SIWAD_APPS": DaemonFixture.apps, "SIWAD_DATABASE_URL_FILE": "/nonexistent/url"]
        try await expect(78, ["SIWAD_DATABASE_URL_FILE", "/nonexistent/url"], environment)
    }

    @Test("The TLS key or certificate is missing, not PEM, or not configured.")
    func unreadableKey() async throws {
        try await TemporaryDirectory.with { directory in
            let certificate = try directory.write("certificate.pem", LocalhostCertificate.pem)
            let base = ["SIWAD_APPS": DaemonFixture.apps, "SIWAD_DATABASE_URL": "dbname=siwa"]
            func environment(_ certificate: String, _ key: String?) -> [String: String] {
                var all = base
                all["SIWAD_TLS_CERTIFICATE"] = certificate
                all["SIWAD_TLS_KEY"] = key
                return all
            }
            let missing = directory.path + "/key.pem"
            try await expect(78, ["SIWAD_TLS_KEY", missing], environment(certificate, missing))
            let nonsense = try directory.write("nonsense.pem", "no key")
            try await expect(78, ["SIWAD_TLS_KEY", nonsense], environment(certificate, nonsense))
            try await expect(78, ["SIWAD_TLS_CERTIFICATE", missing], environment(missing, missing))
            try await expect(78, ["SIWAD_TLS_KEY"], environment(certificate, nil))
        }
    }
}
