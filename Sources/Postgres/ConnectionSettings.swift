/// Where PostgreSQL is, who connects, and how long anything may take.
package struct ConnectionSettings: Sendable {
    /// What was given; nil leaves everything to libpq's `PG*` environment and its defaults.
    private let conninfo: String?
    /// What the server's activity views call this client, unless the conninfo names it.
    package let applicationName: String
    /// For the whole of connecting. `connect_timeout` in the conninfo is taken instead when it is there.
    package var connectTimeout: Duration = .seconds(5)
    /// For one use of a connection that has no deadline of its own.
    package var deadline: Duration = .seconds(30)
    /// For the answer to a cancel request, and to a COMMIT after the deadline; after it the connection is given up.
    package var grace: Duration = .seconds(5)
    /// The server's own limit on a statement, in case this process stops.
    package var statementTimeout: Duration = .seconds(60)
    /// The server's limit on the wait for one lock.
    package var lockTimeout: Duration = .seconds(10)
    /// The server's limit on an open transaction that does nothing.
    package var idleInTransactionTimeout: Duration = .seconds(60)
    /// How long sent data may stay unacknowledged before the kernel gives a TCP connection up.
    package var tcpUserTimeout: Duration = .seconds(10)

    /// Checks the conninfo, a URI (`postgresql://…`) or keywords (`host=… dbname=…`); connects to nothing.
    ///
    /// - Throws: `usage`, which says what is wrong with the conninfo but quotes nothing that may be a password.
    package init(conninfo: String?, applicationName: String) throws(PostgresError) {
        self.conninfo = conninfo
        self.applicationName = applicationName
        guard let conninfo else {
            try Conninfo.check(Conninfo.defaults())
            return
        }
        guard !conninfo.utf8.contains(0) else {
            throw PostgresError(.usage, "the database URL holds a NUL; remove it")
        }
        let options = try Conninfo.parse(conninfo)
        try Conninfo.check(Conninfo.defaults().merging(options) { _, given in given })
        if let seconds = options["connect_timeout"].flatMap({ Int64($0) }), seconds > 0 {
            connectTimeout = .seconds(seconds)
        }
    }

    /// Host, port, database and user in force, for people to read; no password.
    package var redactedDescription: String {
        let options = Conninfo.defaults().merging(given) { _, given in given }
        return ["host", "hostaddr", "port", "dbname", "user", "service"]
            .compactMap { keyword in options[keyword].map { "\(keyword)=\($0)" } }
            .joined(separator: " ")
    }

    /// The parameters for each host in turn, where the conninfo or the environment names several; a service file's hosts
    /// are libpq's to try.
    var alternatives: [[(keyword: String, value: String)]] {
        let options = Conninfo.defaults().merging(given) { _, given in given }
        func list(_ keyword: String) -> [String] {
            options[keyword].map { $0.split(separator: ",", omittingEmptySubsequences: false).map(String.init) } ?? []
        }
        let (hosts, addresses, ports) = (list("host"), list("hostaddr"), list("port"))
        let count = max(hosts.count, addresses.count)
        // Lists that don't match are libpq's to refuse.
        let match = [hosts.count, addresses.count].allSatisfy { [0, count].contains($0) }
        guard count > 1, match, [0, 1, count].contains(ports.count), given["service"] == nil else {
            return [parameters]
        }
        let prefersStandby = options["target_session_attrs"] == "prefer-standby"
        let passes: [[(keyword: String, value: String)]] =
            prefersStandby ? [[("target_session_attrs", "standby")], [("target_session_attrs", "any")]] : [[]]
        return passes.flatMap { wanted in
            (0..<count).map { index in
                var place: [(keyword: String, value: String)] = []
                if !hosts.isEmpty { place.append(("host", hosts[index])) }
                if !addresses.isEmpty { place.append(("hostaddr", addresses[index])) }
                if ports.count > 1 { place.append(("port", ports[index])) }
                return parameters + place + wanted
            }
        }
    }

    /// What the conninfo sets; it was parsed once already, so that it can't fail here.
    private var given: [String: String] {
        conninfo.flatMap { try? Conninfo.parse($0) } ?? [:]
    }

    /// For `PQconnectStartParams`: what the conninfo may override comes before it, what it may not after.
    var parameters: [(keyword: String, value: String)] {
        var parameters: [(keyword: String, value: String)] = [
            ("fallback_application_name", applicationName),
            ("tcp_user_timeout", "\(tcpUserTimeout.milliseconds)"),
        ]
        if let conninfo { parameters.append(("dbname", conninfo)) }
        parameters.append(("client_encoding", "UTF8"))
        return parameters
    }

    /// Comes before everything else on a connection. A role that may create objects in a schema of the default search path
    /// could otherwise have its functions and operators run with the rights of this connection's role
    /// (CVE-2018-1058). Objects of ours are qualified by their schema.
    static let searchPath = "SET search_path = pg_catalog, pg_temp"

    /// What a connection begins with, so that no statement depends on the server's or the role's own settings.
    ///
    /// A commit is on this server's disk when it is reported, whatever they say, also if they change while the connection
    /// lasts. How far it has to come on standbys is left to them: the other values of `synchronous_commit`.
    var sessionScript: String {
        """
        \(Self.searchPath);
        SET client_min_messages = warning;
        SET TimeZone = 'UTC';
        SET jit = off;
        SET default_transaction_isolation = 'read committed';
        SELECT set_config('synchronous_commit', CASE c WHEN 'off' THEN 'on' ELSE c END, false)
            FROM current_setting('synchronous_commit') AS c;
        SET statement_timeout = \(statementTimeout.milliseconds);
        SET lock_timeout = \(lockTimeout.milliseconds);
        SET idle_in_transaction_session_timeout = \(idleInTransactionTimeout.milliseconds)
        """
    }
}
