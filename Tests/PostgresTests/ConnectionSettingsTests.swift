import Postgres
import Testing

@Suite("Connection settings")
struct ConnectionSettingsTests {
    @Test(
        "A conninfo that cannot be read is refused, and nothing that may be a password is quoted.",
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

    @Test("The description for people has no password.")
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
