import Postgres
import TestSupport
import Testing

@Suite("Connecting")
struct ConnectionTests {
    private static func settings(_ conninfo: String) throws -> ConnectionSettings {
        try ConnectionSettings(conninfo: conninfo, applicationName: "tests")
    }

    @Test("A connection has the session settings that statements rely on.")
    func session() async throws {
        try await TestDatabase.with { database in
            var settings = database.settings
            settings.statementTimeout = .milliseconds(12_345)
            let connection = try await PostgresConnection.connect(settings)
            #expect(try await connection.text("SHOW statement_timeout") == "12345ms")
            #expect(try await connection.text("SHOW client_encoding") == "UTF8")
            #expect(try await connection.text("SHOW application_name") == "tests")
            #expect(await connection.serverVersion >= 14_00_00)
        }
    }

    @Test(
        "A reported commit is on the server's disk whatever the role's setting; the setting for standbys is kept.",
        arguments: [("off", "on"), ("on", "on"), ("local", "local"), ("remote_apply", "remote_apply")]
    )
    func durability(set: String, used: String) async throws {
        try await TestDatabase.with { database in
            let settings = try Self.settings(database.conninfo + " options='-c synchronous_commit=\(set)'")
            let connection = try await PostgresConnection.connect(settings)
            #expect(try await connection.text("SHOW synchronous_commit") == used)
            // Later changes of the server's configuration do not change the connection either.
            let source = "SELECT source FROM pg_settings WHERE name = 'synchronous_commit'"
            #expect(try await connection.text(source) == "session")
            await connection.close()
        }
    }

    @Test("A single statement runs at read committed, whatever the role's default.")
    func isolation() async throws {
        try await TestDatabase.with { database in
            let settings = try Self.settings(
                database.conninfo + " options='-c default_transaction_isolation=serializable'"
            )
            let connection = try await PostgresConnection.connect(settings)
            #expect(try await connection.text("SHOW transaction_isolation") == "read committed")
            await connection.close()
        }
    }

    @Test("A database with an encoding other than UTF8 is refused.", arguments: ["LATIN1", "SQL_ASCII"])
    func encoding(name: String) async throws {
        try await TestDatabase.with { database in
            let administrator = try await PostgresConnection.connect(database.settings)
            let other = "\(database.name)_\(name.lowercased())"
            try await administrator.script("CREATE DATABASE \(other) TEMPLATE template0 ENCODING '\(name)' LOCALE 'C'")
            let error = await postgresError {
                try await PostgresConnection.connect(Self.settings(database.conninfo + " dbname=\(other)"))
            }
            #expect(error?.code == .usage)
            #expect(error?.description == "the database's encoding is \(name); create one with ENCODING 'UTF8'")
            try await administrator.script("DROP DATABASE \(other) WITH (FORCE)")
            await administrator.close()
        }
    }

    @Test("A URI works as well as keywords, and keywords may set the application name.")
    func uri() async throws {
        try await TestDatabase.with { database in
            let connection = try await PostgresConnection.connect(
                Self.settings(database.conninfo + " application_name=mine")
            )
            let host = try await connection.text(
                "SELECT split_part(current_setting('unix_socket_directories'), ',', 1)"
            )
            let encodedHost = host.split(separator: "/", omittingEmptySubsequences: false).joined(separator: "%2F")
            let byURI = try await PostgresConnection.connect(
                Self.settings("postgresql://postgres@\(encodedHost):5432/\(database.name)")
            )
            #expect(try await connection.text("SHOW application_name") == "mine")
            #expect(try await byURI.text("SELECT current_database()::text") == database.name)
        }
    }

    @Test("A URI may name several hosts without their ports.")
    func hostsOfURI() async throws {
        try await TestDatabase.with { database in
            let known = try await PostgresConnection.connect(database.settings)
            let directory = try await known.text("SHOW unix_socket_directories")
            await known.close()
            let host = directory.split(separator: "/", omittingEmptySubsequences: false).joined(separator: "%2F")
            let uri = "postgresql://postgres@%2Fnonexistent,\(host)/\(database.name)"
            let connection = try await PostgresConnection.connect(Self.settings(uri))
            #expect(try await connection.integer("SELECT 1") == 1)
            await connection.close()
        }
    }

    @Test("If one of several hosts refuses the role, the others are not asked, as with libpq.")
    func refusedRole() async throws {
        try await TestDatabase.with { database in
            let known = try await PostgresConnection.connect(database.settings)
            let directory = try await known.text("SHOW unix_socket_directories")
            await known.close()
            let settings = try Self.settings("\(database.conninfo) user=nobody host=\(directory),127.0.0.1 port=5432,1")
            let error = await postgresError { try await PostgresConnection.connect(settings) }
            #expect(error?.sqlState?.classCode == "28")
            #expect(error?.description.contains("port 1 ") == false)
        }
    }

    @Test("A time limit of the server for transactions, of PostgreSQL 17 and later, does not apply.")
    func transactionTimeout() async throws {
        try await TestDatabase.with { database in
            let known = try await PostgresConnection.connect(database.settings)
            let version = await known.serverVersion
            await known.close()
            guard version >= 17_00_00 else { return }
            let settings = try Self.settings(database.conninfo + " options='-c transaction_timeout=1s'")
            let connection = try await PostgresConnection.connect(settings)
            #expect(try await connection.text("SHOW transaction_timeout") == "0")
            await connection.close()
        }
    }

    @Test(
        "An unreachable server is a connection error that may be retried.",
        arguments: [
            "host=/nonexistent", "host=127.0.0.1 port=1", "host=nowhere.invalid",
        ]
    )
    func unreachable(conninfo: String) async throws {
        let error = await postgresError { try await PostgresConnection.connect(Self.settings(conninfo)) }
        #expect(error?.code == .connectionFailed)
        #expect(error?.isRetryable == true)
        #expect(error?.description.contains("\n") == false)
        #expect(error?.description.isEmpty == false)
    }

    @Test("Connecting to a server that accepts but never answers ends in time.")
    func silent() async throws {
        let server = try SilentServer()
        var settings = try Self.settings("host=127.0.0.1 port=\(server.port)")
        settings.connectTimeout = .milliseconds(50)
        let patient = settings
        let error = await postgresError { try await PostgresConnection.connect(patient) }
        #expect(error?.code == .connectionFailed)
        #expect(error?.description.contains("no answer") == true)
    }

    @Test(
        "If the first of several hosts never answers, the next one is used.",
        arguments: ["any", "read-write", "prefer-standby"]
    )
    func severalHosts(wanted: String) async throws {
        try await TestDatabase.with { database in
            let known = try await PostgresConnection.connect(database.settings)
            let directory = try await known.text("SHOW unix_socket_directories")
            let port = try await known.text("SHOW port")
            await known.close()
            let silent = try SilentServer()
            var settings = try Self.settings(
                database.conninfo
                    + " host=127.0.0.1,\(directory) port=\(silent.port),\(port) target_session_attrs=\(wanted)"
            )
            settings.connectTimeout = .seconds(8)
            let connection = try await PostgresConnection.connect(settings)
            #expect(try await connection.integer("SELECT 1") == 1)
            await connection.close()
        }
    }

    @Test("If none of several hosts answers, the error gives the cause for each.")
    func noHost() async throws {
        let settings = try Self.settings("host=127.0.0.1,127.0.0.1 port=1,2")
        let error = await postgresError { try await PostgresConnection.connect(settings) }
        #expect(error?.code == .connectionFailed)
        #expect(error?.description.contains("port 1 failed") == true)
        #expect(error?.description.contains("port 2 failed") == true)
    }

    @Test("Connecting stops when the task is cancelled.")
    func cancelled() async throws {
        let server = try SilentServer()
        var settings = try Self.settings("host=127.0.0.1 port=\(server.port)")
        settings.connectTimeout = .seconds(600)
        let patient = settings
        let task = Task { try await PostgresConnection.connect(patient) }
        task.cancel()
        #expect(await postgresError { try await task.value }?.code == .cancelled)
    }

    @Test("The error for a missing database has its name and SQLSTATE, and is not retryable.")
    func noDatabase() async throws {
        try await TestDatabase.with { database in
            let error = await postgresError {
                try await PostgresConnection.connect(Self.settings(database.conninfo + " dbname=missing"))
            }
            #expect(error?.sqlState == .invalidCatalogName)
            #expect(error?.isRetryable == false)
            #expect(error?.description.contains(#"database "missing" does not exist"#) == true)
            #expect(error?.description.contains("LOCATION") == false)
        }
    }

    @Test("The error for a wrong password does not contain the password.")
    func wrongPassword() async throws {
        try await TestDatabase.with { database in
            let administrator = try await PostgresConnection.connect(database.settings)
            let file = try await administrator.text("SHOW hba_file")
            try await administrator.script(
                """
                CREATE ROLE locked LOGIN PASSWORD 'right';
                COPY (VALUES ('local all locked scram-sha-256'), ('local all all trust')) TO '\(file)';
                SELECT pg_reload_conf()
                """
            )
            while try await administrator.integer(
                "SELECT count(*) FROM pg_hba_file_rules WHERE auth_method = 'scram-sha-256'"
            ) == 0 {}
            let error = await postgresError {
                // Until the server has reloaded its rules, the role can connect without a password.
                while true {
                    let connection = try await PostgresConnection.connect(
                        Self.settings(database.conninfo + " user=locked password=geheim")
                    )
                    await connection.close()
                }
            }
            #expect(error?.sqlState == .invalidPassword)
            #expect(error?.isRetryable == false)
            #expect(error?.description.contains("password authentication failed") == true)
            #expect(error?.description.contains("geheim") == false)
            try await administrator.script("DROP ROLE locked")
        }
    }
}
