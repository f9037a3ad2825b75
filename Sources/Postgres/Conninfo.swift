import CLibPQ

/// libpq's own reading of connection strings.
enum Conninfo {
    /// The options that a URI or keyword string sets.
    ///
    /// - Throws: `usage`. libpq quotes pieces of a malformed string, and a piece may be a password, so what stands in
    ///   quotes is shown only where it is the name of an option.
    static func parse(_ conninfo: String) throws(PostgresError) -> [String: String] {
        var message: UnsafeMutablePointer<CChar>?
        guard let options = unsafe PQconninfoParse(conninfo, &message) else {
            defer { unsafe PQfreemem(message) }
            let report = unsafe message.map { unsafe String(cString: $0) } ?? ""
            throw PostgresError(.usage, "the database URL cannot be read: \(redacted(report.singleLine))")
        }
        defer { unsafe PQconninfoFree(options) }
        return unsafe dictionary(options)
    }

    /// Refuses values that libpq would refuse only when it connects, where they would pass for a server that is away.
    ///
    /// - Throws: `usage`, which quotes none of them.
    static func check(_ options: [String: String]) throws(PostgresError) {
        for port in (options["port"] ?? "").split(separator: ",") {
            guard let number = Int(port.filter { $0 != " " }), 1...65_535 ~= number else {
                throw PostgresError(.usage, "the port of the database is not a number from 1 to 65535")
            }
        }
        for host in (options["host"] ?? "").split(separator: ",") {
            // At the beginning it is an abstract socket's, and a directory may hold any character.
            guard !host.dropFirst().contains("@") || host.hasPrefix("/") else {
                throw PostgresError(
                    .usage,
                    "the host of the database holds an @; in a URL, write an @ of the user or password as %40"
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
                throw PostgresError(
                    .usage,
                    "\(keyword) of the database URL is not one of \(words.joined(separator: ", "))"
                )
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

    /// What libpq takes for options that are not given: the environment, or its own defaults.
    static func defaults() -> [String: String] {
        guard let options = unsafe PQconndefaults() else { return [:] }
        defer { unsafe PQconninfoFree(options) }
        return unsafe dictionary(options)
    }

    static func dictionary(_ options: UnsafeMutablePointer<PQconninfoOption>) -> [String: String] {
        var result: [String: String] = [:]
        var option = unsafe options
        while let keyword = unsafe option.pointee.keyword {
            if let value = unsafe option.pointee.val {
                unsafe result[String(cString: keyword)] = unsafe String(cString: value)
            }
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
