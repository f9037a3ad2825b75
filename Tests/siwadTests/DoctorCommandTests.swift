import FoundationEssentials
import Glibc
import Postgres
import StoreTestSupport
import Terminal
import TestSupport
import Testing

@testable import Settings
@testable import siwad

@Suite("siwad doctor")
struct DoctorCommandTests {
    private let closed: ClosedPort

    init() throws {
        closed = try ClosedPort()
    }

    /// Where no siwad answers.
    private func environment(_ database: TestDatabase) -> [String: String] {
        [
            "SIWAD_DATABASE_URL": database.conninfo, "SIWAD_APPS": "AAAAAAAAAA/com.example.one",
            "SIWAD_LISTEN": "127.0.0.1:\(closed.port)", "SIWAD_OPERATIONS_LISTEN": "127.0.0.1:\(closed.port)",
            "SIWAD_KEYS_URL": "file:///nowhere/keys.json",
        ]
    }

    private func lines(_ result: CommandResult, _ check: String) -> [String] {
        result.lines.filter { $0.dropFirst(2).hasPrefix("\(check) ") }
    }

    @Test("runs all checks and ends with 1 if one fails.")
    func everything() async throws {
        try await TestDatabase.with(.siwa) { database in
            let result = await siwad("doctor", environment: environment(database))
            #expect(result.status == .failed)
            #expect(result.errors == "")
            for check in ["configuration", "database", "schema", "objects", "database-clock", "partitions"] {
                #expect(lines(result, check).map { $0.first } == ["✓"], "\(lines(result, check))")
            }
            let unreadable = "cannot read /nowhere/keys.json: No such file or directory"
            #expect(lines(result, "keys") == ["✗ keys            \(unreadable): check the file, and SIWAD_KEYS_URL"])
            #expect(lines(result, "endpoint").first?.contains("start siwad serve with this configuration") == true)
            #expect(lines(result, "maintenance").first?.contains("never done: partitions, retention, erasure") == true)
            #expect(lines(result, "notifications").first?.hasPrefix("⚠ notifications   com.example.one: none") == true)
            let json = await siwad("doctor", "--json", environment: environment(database))
            #expect(json.lines.count == result.lines.count)
            #expect(json.lines.allSatisfy { $0.hasPrefix(#"{"check":""#) && $0.hasSuffix("}") })
        }
    }

    @Test("names the differences in the schema.")
    func drift() async throws {
        try await TestDatabase.with(.siwa) { database in
            let connection = try await PostgresConnection.connect(database.settings)
            try await connection.withSession { session throws(PostgresError) in
                try session.execute(
                    script: "DROP TABLE siwa.maintenance; ALTER TABLE siwa.accounts ALTER COLUMN sub DROP NOT NULL"
                )
            }
            await connection.close()
            let result = await siwad("doctor", environment: environment(database))
            let expected =
                "✗ objects         table maintenance is missing, column accounts.sub is another one: restore what siwad "
                + "migrate sql prints, or find out who changed it"
            #expect(lines(result, "objects") == [expected])
            #expect(lines(result, "maintenance").first?.hasPrefix("✗") == true, "what can't be asked is wrong too")
        }
    }

    @Test("says when notifications can't be stored: the database is read only, or the role has too few rights.")
    func writes() async throws {
        try await TestDatabase.with(.siwa) { database in
            let connection = try await PostgresConnection.connect(database.settings)
            let role = "poor_\(getpid())"
            try await connection.withSession { session throws(PostgresError) in
                try session.execute(
                    script:
                        "CREATE ROLE \(role) LOGIN IN ROLE siwad_daemon; REVOKE INSERT ON siwa.notifications FROM siwad_daemon"
                )
            }
            var poor = environment(database)
            poor["SIWAD_DATABASE_URL"] = database.conninfo + " user=\(role)"
            let denied = await siwad("doctor", environment: poor)
            #expect(
                lines(denied, "writes").first?.contains("permission denied for table notifications: connect as")
                    == true,
                "\(lines(denied, "writes"))"
            )
            let allowed = await siwad("doctor", environment: environment(database))
            #expect(lines(allowed, "writes").map(\.first) == ["✓"])
            try await connection.withSession { session throws(PostgresError) in
                try session.execute(
                    script: """
                        DROP ROLE \(role);
                        DO $$ BEGIN
                            EXECUTE format('ALTER DATABASE %I SET default_transaction_read_only = on', current_database());
                        END $$
                        """
                )
            }
            await connection.close()
            let readOnly = await siwad("doctor", environment: environment(database))
            #expect(lines(readOnly, "writes").first?.contains("it is a standby, or set to read only") == true)
        }
    }

    @Test("skips checks that need a migrated database, and names the command to run.")
    func notMigrated() async throws {
        try await TestDatabase.with { database in
            let result = await siwad("doctor", environment: environment(database))
            let expected = "✗ schema          the database is not migrated: \(SchemaState.nextStep)"
            #expect(lines(result, "schema") == [expected])
            #expect(lines(result, "objects").isEmpty)
        }
    }

    @Test("continues without a database and without apps.")
    func without() async throws {
        let nowhere = "host=127.0.0.1 port=\(closed.port) dbname=none"
        let result = await siwad(
            "doctor",
            "--keys-url",
            "file:///nowhere",
            environment: ["SIWAD_DATABASE_URL": nowhere]
        )
        #expect(result.status == .failed)
        #expect(
            lines(result, "configuration").first?.hasPrefix("✗ configuration   no apps are configured: set") == true
        )
        #expect(lines(result, "database").first?.contains("check that PostgreSQL runs there") == true)
        #expect(lines(result, "certificate").first?.hasPrefix("✓") == true)
    }

    @Test("names a missing database and missing apps, each with its next step.")
    func nothingConfigured() async {
        let result = await siwad("doctor", "--keys-url", "file:///nowhere")
        #expect(result.status == .failed)
        let found = lines(result, "configuration")
        #expect(found.count == 2)
        let database = "✗ configuration   no database is configured: set SIWAD_DATABASE_URL, "
        #expect(found.first?.hasPrefix(database) == true, "\(found)")
        #expect(found.last?.hasPrefix("✗ configuration   no apps are configured: set SIWAD_APPS ") == true, "\(found)")
    }

    @Test("reports malformed settings as a finding.")
    func settings() async {
        let result = await siwad("doctor", "--listen", "here", "--json")
        #expect(result.status == .failed)
        #expect(result.errors == "")
        #expect(
            result.output.hasPrefix(#"{"check":"configuration","subject":null,"status":"fail","detail":"--listen is"#)
        )
    }

    @Test("fails where the authorities of receivers can't be read, even without endpoints and without a database.")
    func authorities() async {
        func findings(effects: String) async -> [String] {
            let environment = [
                "SIWAD_DELIVERY_CA": "/nowhere/ca.pem", "SIWAD_KEYS_URL": "file:///nowhere", "SIWAD_EFFECTS": effects,
            ]
            let result = await siwad("doctor", environment: environment)
            return lines(result, "configuration").filter { $0.contains("ca.pem") }
        }
        let found = await findings(effects: "on")
        #expect(found.count == 1)
        let unreadable = "SIWAD_DELIVERY_CA: /nowhere/ca.pem is not a readable PEM file with certificates"
        #expect(found.first?.hasPrefix("✗ configuration   \(unreadable)") == true, "\(found)")
        #expect(found.first?.hasSuffix(": correct the file, or name another one") == true, "\(found)")
        #expect(await findings(effects: "off") == [])
    }

    @Test("reports an application endpoint that does not answer rather than client ids that its callers can't use.")
    func application() async {
        let environment = [
            "SIWAD_APPS": "AAAAAAAAAA/com.example.one", "SIWAD_KEYS_URL": "file:///nowhere",
            "SIWAD_APPLICATION_LISTEN": "127.0.0.1:\(closed.port)",
            "SIWAD_APPLICATION_TOKENS": "shop \(String(repeating: "ab", count: 32)) com.example.none",
        ]
        let found = lines(await siwad("doctor", environment: environment), "application")
        #expect(found.count == 1)
        let expected = "✗ application     nothing answers at http://127.0.0.1:\(closed.port): start siwad serve"
        #expect(found.first?.hasPrefix(expected) == true, "\(found)")
    }

    @Test(
        "fails where siwad serve would refuse the settings of sign-ins, even without keys of Apple's.",
        arguments: [("SIWAD_NONCE", "issued"), ("SIWAD_CODE_EXCHANGE", "required")]
    )
    func signIns(setting: String, value: String) async {
        let environment = [
            "SIWAD_APPS": "AAAAAAAAAA/com.example.one", "SIWAD_KEYS_URL": "file:///nowhere",
            "SIWAD_APPLICATION_LISTEN": "unix:/nowhere/application.sock", setting: value,
        ]
        let result = await siwad("doctor", environment: environment)
        #expect(result.status == .failed)
        let found = lines(result, "configuration").filter { $0.contains(setting) }
        #expect(found.count == 1, "\(result.output)")
        #expect(found.first?.hasPrefix("✗ ") == true, "\(found)")
    }

    @Test("fails where siwad serve would serve applications over TCP without tokens.")
    func callers() async {
        let environment = [
            "SIWAD_APPS": "AAAAAAAAAA/com.example.one", "SIWAD_KEYS_URL": "file:///nowhere",
            "SIWAD_APPLICATION_LISTEN": "127.0.0.1:\(closed.port)",
        ]
        let result = await siwad("doctor", environment: environment)
        #expect(result.status == .failed)
        let found = lines(result, "configuration").filter { $0.contains("SIWAD_APPLICATION_TOKENS is not set") }
        #expect(found.count == 1 && found.first?.hasPrefix("✗ ") == true, "\(result.output)")
    }

    @Test("warns of a key that systemd passes only while its service runs, and signs no client secret with it.")
    func credentials() async {
        let environment = [
            "SIWAD_APPS": "AAAAAAAAAA/com.example.one", "SIWAD_KEYS_URL": "file:///nowhere",
            "SIWAD_APPLE_KEYS": "AAAAAAAAAA/KEY1234567=/run/credentials/siwad-\(closed.port)/AuthKey_KEY1234567.p8",
        ]
        let result = await siwad("doctor", environment: environment)
        let found = lines(result, "apple-keys")
        #expect(found.count == 1 && found.first?.hasPrefix("⚠ ") == true, "\(result.output)")
        #expect(lines(result, "client-secret") == [])
    }

    @Test("fails where the certificate of the application endpoint has expired.", .enabled(if: OpenSSL.isInstalled))
    func applicationCertificate() async throws {
        let directory = try TemporaryDirectory()
        try await OpenSSL.makeCertificate("ec", in: directory)
        try await OpenSSL.expireCertificate(in: directory)
        let environment = [
            "SIWAD_APPS": "AAAAAAAAAA/com.example.one", "SIWAD_KEYS_URL": "file:///nowhere",
            "SIWAD_APPLICATION_LISTEN": "127.0.0.1:\(closed.port)",
            "SIWAD_APPLICATION_TLS_CERTIFICATE": directory.file("certificate.pem"),
            "SIWAD_APPLICATION_TLS_KEY": directory.file("key.pem"),
            "SIWAD_APPLICATION_TOKENS": "shop \(String(repeating: "ab", count: 32)) com.example.one",
        ]
        let found = lines(await siwad("doctor", environment: environment), "certificate")
        #expect(found.count == 2, "\(found)")
        let expected = "✗ certificate     application endpoint: it expired on "
        #expect(found.last?.hasPrefix(expected) == true, "\(found)")
    }

    @Test("reports the files in the spool.")
    func spool() async throws {
        let directory = FileManager.default.temporaryDirectory.path + "/siwad-doctor-\(UInt64.random(in: 0 ... .max))"
        try FileManager.default.createDirectory(atPath: directory, withIntermediateDirectories: true)
        defer { try? FileManager.default.removeItem(atPath: directory) }
        let environment = ["SIWAD_SPOOL_DIRECTORY": directory, "SIWAD_KEYS_URL": "file:///nowhere"]
        #expect(lines(await siwad("doctor", environment: environment), "spool") == ["✓ spool           empty"])
        #expect(FileManager.default.createFile(atPath: "\(directory)/.siwad-spool", contents: nil))
        for name in [
            "00001789999990000000.spool", "00001789999990000001.spool", ".00001789999990000002.spool.tmp",
        ] {
            #expect(FileManager.default.createFile(atPath: "\(directory)/\(name)", contents: Data([1, 2, 3])))
        }
        let waiting = await siwad("doctor", environment: environment)
        #expect(
            lines(waiting, "spool").first?.hasPrefix("⚠ spool           2 files waiting, 6 B, the oldest for") == true
        )
        #expect(lines(waiting, "disk").count == 1)
        for name in ["00001789999990000003.refused.spool", "00001789999990000004.refused.spool"] {
            #expect(FileManager.default.createFile(atPath: "\(directory)/\(name)", contents: Data([1, 2])))
        }
        let refused = lines(await siwad("doctor", environment: environment), "spool")
        #expect(refused.count == 2)
        #expect(
            refused.first?.hasPrefix(
                "⚠ spool           PostgreSQL refuses 2 notifications (….refused.spool), 4 B, the oldest for"
            ) == true
        )
        #expect(refused.last?.hasPrefix("⚠ spool           2 files waiting, 6 B, the oldest for") == true)
        #expect(
            FileManager.default.createFile(atPath: "\(directory)/00000000000000000000.spool.corrupt", contents: nil)
        )
        #expect(
            lines(await siwad("doctor", environment: environment), "spool").last?.contains("1 file set aside") == true
        )
        let absent = ["SIWAD_SPOOL_DIRECTORY": directory + "/absent", "SIWAD_KEYS_URL": "file:///nowhere"]
        #expect(lines(await siwad("doctor", environment: absent), "spool").first?.hasPrefix("✗ spool") == true)
    }

    @Test("refuses the spool directories that siwad serve refuses.")
    func unusableSpool() async throws {
        let parent = try TemporaryDirectory()
        let environment = ["SIWAD_SPOOL_DIRECTORY": parent.file("spool"), "SIWAD_KEYS_URL": "file:///nowhere"]
        func finding() async -> String { lines(await siwad("doctor", environment: environment), "spool").joined() }
        try #require(mkdir(parent.file("spool"), 0o700) == 0)
        #expect(await finding() == "✓ spool           empty")
        try #require(chmod(parent.file("spool"), 0o777) == 0)
        #expect(await finding().hasPrefix("✗ spool"))
        #expect(await finding().contains("others can write it"))
        try #require(chmod(parent.file("spool"), 0o700) == 0 && chmod(parent.path, 0o777) == 0)
        #expect(await finding().hasPrefix("✗ spool"))
        #expect(await finding().contains("others can write it"))
        try #require(chmod(parent.path, 0o700) == 0)
        try parent.write([1], to: "spool/notes.txt")
        #expect(await finding().contains("it is not empty and has no file .siwad-spool"))
        #expect(try TemporaryDirectory.names(at: parent.file("spool")) == ["notes.txt"], "doctor changes nothing")
    }

    @Test("probes a server that listens on all addresses at the loopback address.")
    func addresses() throws {
        #expect(Checkup.url("http", .init(host: "0.0.0.0", port: 80)) == "http://127.0.0.1:80")
        #expect(Checkup.url("https", .init(host: "::", port: 443)) == "https://[::1]:443")
        #expect(Checkup.url("http", .init(host: "10.0.0.1", port: 8080)) == "http://10.0.0.1:8080")
        #expect(Checkup.url("http", .init(host: "127.0.0.1", port: 0)) == nil)
    }
}

/// A TCP port that is bound on all addresses and refuses connections, for as long as this object exists.
final class ClosedPort: Sendable {
    /// Chosen by the kernel.
    let port: UInt16
    private let descriptor: Int32

    init() throws {
        let descriptor = socket(AF_INET, Int32(SOCK_STREAM.rawValue), 0)
        var address = sockaddr_in()
        address.sin_family = sa_family_t(AF_INET)
        var length = socklen_t(MemoryLayout<sockaddr_in>.size)
        let isBound = withUnsafeMutableBytes(of: &address) { bytes in
            bytes.withMemoryRebound(to: sockaddr.self) {
                bind(descriptor, $0.baseAddress, length) == 0 && getsockname(descriptor, $0.baseAddress, &length) == 0
            }
        }
        try #require(isBound)
        self.descriptor = descriptor
        port = UInt16(bigEndian: address.sin_port)
    }

    deinit {
        close(descriptor)
    }
}
