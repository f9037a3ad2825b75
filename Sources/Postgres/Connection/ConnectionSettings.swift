import CLibPQ

/// How to connect to PostgreSQL, and the time limits of everything that follows.
package struct ConnectionSettings: Sendable {
    /// nil leaves everything to libpq's `PG*` environment and its defaults.
    private let conninfo: String?
    /// The options that the conninfo sets.
    private let given: [String: String]
    /// The name in the server's activity views, unless the conninfo sets one.
    package let applicationName: String
    /// For connecting as a whole. A `connect_timeout` of the conninfo, a service or the environment overrides it.
    package var connectTimeout: Duration = .seconds(5)
    /// For one use of a connection that has no deadline of its own.
    package var deadline: Duration = .seconds(30)
    /// For the answer to a cancel request, and to a COMMIT after the deadline; then the connection is closed.
    package var grace: Duration = .seconds(5)
    /// The server's own limit on a statement, in case this process stops.
    package var statementTimeout: Duration = .seconds(60)
    /// The server's limit on the wait for one lock.
    package var lockTimeout: Duration = .seconds(10)
    /// Looks up the addresses of a host; may block.
    var resolve: @Sendable (_ host: String) -> [String] = { addresses(of: $0) }

    /// Of the libpq that connects, such as `17.2`.
    package static var libraryVersion: String { "\(PQlibVersion() / 10_000).\(PQlibVersion() % 10_000)" }

    /// Checks the conninfo, a URI (`postgresql://…`) or keywords (`host=… dbname=…`), without connecting.
    ///
    /// - Throws: `usage` with the fault in the conninfo. The message quotes nothing that may be a password.
    package init(conninfo: String?, applicationName: String) throws(PostgresError) {
        self.conninfo = conninfo
        self.applicationName = applicationName
        given = if let conninfo { try Conninfo.parse(conninfo) } else { [:] }
        try Conninfo.check(options)
        if let seconds = options["connect_timeout"].flatMap({ Int64($0) }), seconds > 0 {
            connectTimeout = .seconds(seconds)
        }
    }

    /// Host, port, database and user in force, without the password.
    package var redactedDescription: String {
        let options = options
        return ["host", "hostaddr", "port", "dbname", "user", "service"]
            .compactMap { keyword in options[keyword].map { "\(keyword)=\($0)" } }
            .joined(separator: " ")
    }

    /// The parameters for each host in turn, where the conninfo, a service or the environment names several.
    var alternatives: [[(keyword: String, value: String)]] {
        let options = options
        func list(_ keyword: String) -> [String] {
            options[keyword].map { $0.split(separator: ",", omittingEmptySubsequences: false).map(String.init) } ?? []
        }
        let (hosts, addresses, ports) = (list("host"), list("hostaddr"), list("port"))
        let count = max(hosts.count, addresses.count)
        // libpq refuses lists of different lengths, and ignores an empty parameter: the list of the conninfo stays in force.
        let match = [hosts.count, addresses.count].allSatisfy { [0, count].contains($0) }
        guard count > 1, match, [0, 1, count].contains(ports.count), !(hosts + addresses).contains("") else {
            return [parameters]
        }
        let order = Self.order(count, options)
        return Self.passes(options).flatMap { wanted in
            order.map { index in
                var place: [(keyword: String, value: String)] = []
                if !hosts.isEmpty { place.append(("host", hosts[index])) }
                if !addresses.isEmpty { place.append(("hostaddr", addresses[index])) }
                // A URI gives a list of ports, whether its hosts have one or not.
                if ports.count > 1 { place.append(("port", ports[index].isEmpty ? Conninfo.usualPort : ports[index])) }
                return parameters + place + wanted
            }
        }
    }

    /// The order in which several hosts are tried.
    static func order(_ count: Int, _ options: [String: String]) -> [Int] {
        options["load_balance_hosts"] == "random" ? (0..<count).shuffled() : Array(0..<count)
    }

    /// `alternative` for each address of its host in turn, if the host is a name with several. libpq would try the next
    /// address after an error, but not if the network drops packets.
    ///
    /// Blocks while the name is looked up.
    func places(of alternative: [(keyword: String, value: String)]) -> [[(keyword: String, value: String)]] {
        let options = options.merging(alternative.map { ($0.keyword, $0.value) }) { _, later in later }
        let host = options["host"] ?? ""
        // Directories, abstract sockets and lists that libpq refuses have no address.
        guard !host.isEmpty, !host.hasPrefix("/"), !host.hasPrefix("@"), !host.contains(","),
            (options["hostaddr"] ?? "").isEmpty
        else { return [alternative] }
        let addresses = resolve(host)
        guard addresses.count > 1 else { return [alternative] }
        let order = Self.order(addresses.count, options)
        return Self.passes(options).flatMap { wanted in
            // libpq still uses the name for the password file and the server's certificate.
            order.map { alternative + [("hostaddr", addresses[$0])] + wanted }
        }
    }

    /// What to require of a server, pass by pass: every place is asked for a standby before another server is accepted.
    private static func passes(_ options: [String: String]) -> [[(keyword: String, value: String)]] {
        guard options["target_session_attrs"] == "prefer-standby" else { return [[]] }
        return [[("target_session_attrs", "standby")], [("target_session_attrs", "any")]]
    }

    private var options: [String: String] {
        let options = Conninfo.defaults().merging(given) { _, given in given }
        guard let conninfo, given["service"] != nil else { return options }
        return options.merging(Conninfo.withService(conninfo)) { _, merged in merged }
    }

    /// For `PQconnectStartParams`: before the conninfo what it may override, after it what it may not.
    var parameters: [(keyword: String, value: String)] {
        let options = options
        var parameters: [(keyword: String, value: String)] = [("fallback_application_name", applicationName)]
        // A parameter would override a service.
        parameters += Self.deadConnections.filter { options[$0.keyword] == nil }
        if let conninfo { parameters.append(("dbname", conninfo)) }
        parameters.append(("client_encoding", "UTF8"))
        return parameters
    }

    /// When the kernel closes a TCP connection whose other end is gone without a word: if sent data stay unacknowledged for 10
    /// seconds (in milliseconds), or after a minute and a half without traffic (in seconds).
    private static let deadConnections = [
        (keyword: "tcp_user_timeout", value: "10000"), (keyword: "keepalives_idle", value: "60"),
        (keyword: "keepalives_interval", value: "10"), (keyword: "keepalives_count", value: "3"),
    ]

    /// The first statements on a connection, so that no later statement depends on settings of the server or the role.
    ///
    /// The search path comes first: with the default one, a role that may create objects in a schema on it could have its
    /// functions and operators run with the rights of this connection's role (CVE-2018-1058).
    ///
    /// A reported commit is on this server's disk, whatever the server's settings are or become. How far it has to be on
    /// standbys is left to those settings: the other values of `synchronous_commit`.
    var sessionScript: String {
        """
        SET search_path = pg_catalog, pg_temp;
        SET client_min_messages = warning;
        SET TimeZone = 'UTC';
        SET standard_conforming_strings = on;
        SET IntervalStyle = 'postgres';
        SET quote_all_identifiers = off;
        SET jit = off;
        SET default_transaction_isolation = 'read committed';
        SELECT set_config('synchronous_commit', CASE c WHEN 'off' THEN 'on' ELSE c END, false)
            FROM current_setting('synchronous_commit') AS c;
        SET statement_timeout = \(statementTimeout.milliseconds);
        SET lock_timeout = \(lockTimeout.milliseconds);
        SET idle_in_transaction_session_timeout = '60s';
        SELECT set_config(name, '0', false) FROM pg_settings WHERE name = 'transaction_timeout'
        """
    }
}

/// The server at the other end of a connection, and how far the connection verifies it.
package struct ServerEndpoint: Sendable, Equatable {
    /// The server's IP address; nil for a unix socket.
    package let address: String?
    /// The `sslmode` in force, which may come from a service file or the environment. Only `verify-full` requires a
    /// certificate for the server's name (libpq, "SSL Support").
    package let sslMode: String

    /// True if the connection stays within this machine.
    package var isLocal: Bool {
        guard let address else { return true }
        return address == "::1" || address.hasPrefix("127.") || address.hasPrefix("::ffff:127.")
    }
}

/// Parsing of connection strings by libpq.
///
/// Safe to use: libpq's lists and texts are copied before they are freed, and freed once.
enum Conninfo {
    /// The options that a URI or keyword string sets.
    ///
    /// - Throws: `usage`. libpq quotes pieces of a malformed string, and a piece may be a password. So quoted text is
    ///   shown only in reports that are known to quote the name of an option.
    static func parse(_ conninfo: String) throws(PostgresError) -> [String: String] {
        guard !conninfo.utf8.contains(0) else {
            throw PostgresError(.usage, "the database URL contains a NUL; remove it")
        }
        var message: UnsafeMutablePointer<CChar>?
        guard let options = unsafe PQconninfoParse(conninfo, &message) else {
            defer { unsafe PQfreemem(message) }
            let report = unsafe String(copying: message) ?? ""
            throw PostgresError(.usage, "the database URL cannot be read: \(redacted(report.singleLine))")
        }
        defer { unsafe PQconninfoFree(options) }
        return unsafe dictionary(options)
    }

    /// Refuses values that libpq would refuse only while connecting, where they would look like an unreachable server.
    ///
    /// - Throws: `usage`, which quotes no value.
    static func check(_ options: [String: String]) throws(PostgresError) {
        for port in (options["port"] ?? "").split(separator: ",") {
            guard let number = Int(port.filter { $0 != " " }), 1...65_535 ~= number else {
                throw PostgresError(.usage, "the port of the database is not a number from 1 to 65535")
            }
        }
        for host in (options["host"] ?? "").split(separator: ",") {
            // A leading @ is an abstract socket, and a directory may contain any character.
            guard !host.dropFirst().contains("@") || host.hasPrefix("/") else {
                throw PostgresError(
                    .usage,
                    "the host of the database contains an @; in a URL, write an @ of the user or password as %40"
                )
            }
        }
        for keyword in numbers {
            guard options[keyword].map({ $0.isEmpty || Int32($0.filter { $0 != " " }) != nil }) ?? true else {
                throw PostgresError(.usage, "\(keyword) of the database URL is not a whole number")
            }
        }
        for (keyword, words) in vocabularies {
            guard options[keyword].map({ $0.isEmpty || words.contains($0) }) ?? true else {
                let list = words.joined(separator: ", ")
                throw PostgresError(.usage, "\(keyword) of the database URL is not one of \(list)")
            }
        }
    }

    private static let numbers = [
        "connect_timeout", "keepalives", "keepalives_idle", "keepalives_interval", "keepalives_count",
        "tcp_user_timeout",
    ]

    private static let vocabularies = [
        ("sslmode", ["disable", "allow", "prefer", "require", "verify-ca", "verify-full"]),
        ("target_session_attrs", ["any", "read-write", "read-only", "primary", "standby", "prefer-standby"]),
    ]

    /// What libpq connects to if an item of a list of ports is empty. It then ignores PGPORT.
    static let usualPort: String = {
        guard let options = unsafe PQconndefaults() else { return "" }
        defer { unsafe PQconninfoFree(options) }
        return unsafe dictionary(options, compiled: true)["port"] ?? ""
    }()

    /// What libpq uses for options that are not given: the environment, or its own defaults.
    static func defaults() -> [String: String] {
        guard let options = unsafe PQconndefaults() else { return [:] }
        defer { unsafe PQconninfoFree(options) }
        return unsafe dictionary(options)
    }

    /// The options in force for a conninfo that names a service, without the password; none if the service is unknown.
    static func withService(_ conninfo: String) -> [String: String] {
        var handle = ConnectionHandle()
        // libpq reads a service file only when it connects. It refuses the unknown mode before it looks up a host, and the
        // password keeps it from reading the password file.
        handle.connect([("dbname", conninfo), ("password", "-"), ("gssencmode", "-")])
        return handle.options.filter { $0.key != "password" && $0.key != "gssencmode" }
    }

    /// Copies the values of a list of libpq's, or its compiled-in defaults. The list ends with an option without a keyword.
    static func dictionary(
        _ options: UnsafeMutablePointer<PQconninfoOption>,
        compiled: Bool = false
    ) -> [String: String] {
        var result: [String: String] = [:]
        var option = unsafe options
        while let keyword = unsafe option.pointee.keyword {
            let value = unsafe compiled ? option.pointee.compiled : option.pointee.val
            unsafe result[String(cString: keyword)] = unsafe String(copying: value)
            unsafe option += 1
        }
        return result
    }

    private static func redacted(_ report: String) -> String {
        for prefix in ["invalid connection option", "invalid URI query parameter"] where report.hasPrefix(prefix) {
            return report
        }
        var result = ""
        for (index, piece) in report.split(separator: "\"", omittingEmptySubsequences: false).enumerated() {
            result += index.isMultiple(of: 2) ? String(piece) : "\"…\""
        }
        return result
    }
}
