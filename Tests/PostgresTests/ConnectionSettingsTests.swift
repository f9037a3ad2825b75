import Postgres
import Testing

@Suite("Connection settings")
struct ConnectionSettingsTests {
    @Test(
        "A malformed conninfo is refused, and nothing that may be a password is quoted.",
        arguments: [
            "geheim", "password=geheim host", "postgresql://me:ge%zzheim@host/db", "host='geheim",
            "postgresql://me:geheim@[host",
            "password=ge heim geheim", "\0geheim",
        ]
    )
    func malformed(conninfo: String) {
        let error = #expect(throws: PostgresError.self) {
            try ConnectionSettings(conninfo: conninfo, applicationName: "tests")
        }
        #expect(error?.code == .usage)
        #expect(error?.description.contains("heim") == false)
        #expect(error?.description.contains("\n") == false)
    }

    @Test("An unknown option is named.", arguments: ["hots=somewhere", "postgresql://host/db?hots=1"])
    func unknownOption(conninfo: String) {
        let error = #expect(throws: PostgresError.self) {
            try ConnectionSettings(conninfo: conninfo, applicationName: "tests")
        }
        #expect(error?.description.contains("hots") == true)
    }

    @Test(
        "A value that libpq would refuse only while connecting is refused immediately, by its option, and not quoted.",
        arguments: [
            ("postgresql://db.example:geheim/db", "port"), ("host=a,b port=5432,geheim", "port"),
            ("port=70000", "port"), ("postgresql://me:se@geheim@db.example/db", "host"), ("host=a,b@geheim", "host"),
            ("postgresql://host/db?connect_timeout=geheim", "connect_timeout"), ("sslmode=geheim", "sslmode"),
            ("target_session_attrs=geheim", "target_session_attrs"), ("keepalives=geheim", "keepalives"),
        ]
    )
    func unusable(conninfo: String, option: String) {
        let error = #expect(throws: PostgresError.self) {
            try ConnectionSettings(conninfo: conninfo, applicationName: "tests")
        }
        #expect(error?.code == .usage)
        #expect(error?.description.contains(option) == true, "\(error?.description ?? "")")
        #expect(error?.description.contains("geheim") == false)
    }

    @Test(
        "Values that libpq accepts are accepted.",
        arguments: [
            "host=a,b port=5432,", "port=", "host=@abstract,/tmp/a@b",
            "host=a port=' 5432 '", "sslmode=verify-full connect_timeout=3",
            "postgresql://a:1,b:65535/db?target_session_attrs=prefer-standby",
        ]
    )
    func usable(conninfo: String) throws {
        _ = try ConnectionSettings(conninfo: conninfo, applicationName: "tests")
    }

    @Test("The redacted description contains no password.")
    func redacted() throws {
        let settings = try ConnectionSettings(
            conninfo: "postgresql://me:geheim@db.example:6432/accounts?connect_timeout=7",
            applicationName: "tests"
        )
        #expect(settings.redactedDescription.contains("host=db.example port=6432 dbname=accounts user=me"))
        #expect(!settings.redactedDescription.contains("geheim"))
        #expect(settings.connectTimeout == .seconds(7))
    }
}
