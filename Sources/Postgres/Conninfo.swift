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

    /// What libpq takes for options that are not given: the environment, or its own defaults.
    static func defaults() -> [String: String] {
        guard let options = unsafe PQconndefaults() else { return [:] }
        defer { unsafe PQconninfoFree(options) }
        return unsafe dictionary(options)
    }

    private static func dictionary(_ options: UnsafeMutablePointer<PQconninfoOption>) -> [String: String] {
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
