import Glibc
import TestSupport
import Testing

@testable import Postgres

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

    @Test(
        "Each of several hosts has its own port, or libpq's; a list with an empty host is left to libpq.",
        arguments: [
            ("postgresql://a,b/db", ["a 5432", "b 5432"]), ("postgresql://a:1,b/db", ["a 1", "b 5432"]),
            ("postgresql://a,b:1/db", ["a 5432", "b 1"]), ("host=a,b port=1,", ["a 1", "b 5432"]),
            ("host=,b port=1,2", [""]), ("host=a,b hostaddr=,192.0.2.1", [""]),
        ]
    )
    func ports(conninfo: String, expected: [String]) throws {
        let settings = try ConnectionSettings(conninfo: conninfo, applicationName: "tests")
        #expect(Self.texts(settings.alternatives, ["host", "port"]) == expected)
    }

    @Test("Hosts are tried in their order, or in any order if the load is to be balanced.")
    func order() {
        #expect(ConnectionSettings.order(3, [:]) == [0, 1, 2])
        let firsts = (0..<200).compactMap { _ in ConnectionSettings.order(2, ["load_balance_hosts": "random"]).first }
        #expect(Set(firsts) == [0, 1])
    }

    @Test(
        "A TCP connection whose other end is gone is closed in time, unless the conninfo or its service says otherwise.",
        arguments: ["service=patient", "tcp_user_timeout=3000 keepalives_idle=7"]
    )
    func deadConnections(conninfo: String) async {
        let usual = ConnectionSettingsTests.timeouts("host=a")
        #expect(usual == ["10000", "60", "10", "3"])
        await #expect(processExitsWith: .success) { [conninfo] in
            let directory = try TemporaryDirectory()
            try directory.write(Array("[patient]\ntcp_user_timeout=3000\nkeepalives_idle=7\n".utf8), to: "services")
            setenv("PGSERVICEFILE", directory.file("services"), 1)
            #expect(ConnectionSettingsTests.timeouts(conninfo) == ["", "", "10", "3"])
        }
    }

    /// The parameters that precede the conninfo.
    private static func timeouts(_ conninfo: String) -> [String] {
        let settings = try? ConnectionSettings(conninfo: conninfo, applicationName: "tests")
        return ["tcp_user_timeout", "keepalives_idle", "keepalives_interval", "keepalives_count"].map { keyword in
            settings?.parameters.first { $0.keyword == keyword }?.value ?? ""
        }
    }

    @Test(
        "A name with several addresses is one place for each, and a standby is looked for at all of them first.",
        arguments: [
            ("host=db.example", ["192.0.2.1", "192.0.2.2"]),
            (
                "host=db.example target_session_attrs=prefer-standby",
                ["192.0.2.1 standby", "192.0.2.2 standby", "192.0.2.1 any", "192.0.2.2 any"]
            ),
            ("host=db.example hostaddr=192.0.2.9", [""]), ("host=/tmp", [""]), ("host=@abstract", [""]),
        ]
    )
    func addresses(conninfo: String, expected: [String]) throws {
        var settings = try ConnectionSettings(conninfo: conninfo, applicationName: "tests")
        settings.resolve = { _ in ["192.0.2.1", "192.0.2.2"] }
        #expect(Self.texts(settings.places(of: settings.parameters), ["hostaddr", "target_session_attrs"]) == expected)
    }

    @Test("A name with one address, or none, is left to libpq.", arguments: [[], ["192.0.2.1"]])
    func address(addresses: [String]) throws {
        var settings = try ConnectionSettings(conninfo: "host=db.example", applicationName: "tests")
        settings.resolve = { _ in addresses }
        #expect(Self.texts(settings.places(of: settings.parameters), ["hostaddr"]) == [""])
    }

    @Test("The resolver of the system knows an address, and no name that cannot exist.")
    func resolver() throws {
        let settings = try ConnectionSettings(conninfo: nil, applicationName: "tests")
        #expect(settings.resolve("127.0.0.1") == ["127.0.0.1"])
        #expect(settings.resolve("::1") == ["::1"])
        #expect(settings.resolve("nowhere.invalid") == [])
    }

    @Test("The hosts and the time limit of a service apply, whether the conninfo or the environment names it.")
    func service() async {
        // libpq reads the variables of the process, which other tests read at the same time.
        await #expect(processExitsWith: .success) {
            let directory = try TemporaryDirectory()
            let file = "[ha]\nhost=a,b\nport=1,2\nconnect_timeout=7\npassword=geheim\n"
            try directory.write(Array(file.utf8), to: "services")
            setenv("PGSERVICEFILE", directory.file("services"), 1)
            let named = try ConnectionSettings(conninfo: "service=ha port=3,4", applicationName: "tests")
            #expect(ConnectionSettingsTests.texts(named.alternatives, ["host", "port"]) == ["a 3", "b 4"])
            #expect(named.connectTimeout == .seconds(7))
            #expect(!named.redactedDescription.contains("geheim"))
            let unknown = try ConnectionSettings(conninfo: "service=none host=a", applicationName: "tests")
            #expect(unknown.redactedDescription.contains("host=a"))
            setenv("PGSERVICE", "ha", 1)
            let implied = try ConnectionSettings(conninfo: nil, applicationName: "tests")
            #expect(ConnectionSettingsTests.texts(implied.alternatives, ["host", "port"]) == ["a 1", "b 2"])
            #expect(implied.connectTimeout == .seconds(7))
        }
    }

    @Test("The time limit for connecting may come from the environment, and the conninfo overrides it.")
    func timeLimit() async {
        await #expect(processExitsWith: .success) {
            setenv("PGCONNECT_TIMEOUT", "7", 1)
            let settings = try ConnectionSettings(conninfo: "host=a", applicationName: "tests")
            #expect(settings.connectTimeout == .seconds(7))
            let own = try ConnectionSettings(conninfo: "host=a connect_timeout=3", applicationName: "tests")
            #expect(own.connectTimeout == .seconds(3))
        }
    }

    /// The values of some keywords for each place; the last value is in force.
    private static func texts(_ places: [[(keyword: String, value: String)]], _ keywords: [String]) -> [String] {
        places.map { place in
            keywords.compactMap { keyword in place.last { $0.keyword == keyword }?.value }.joined(separator: " ")
        }
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
