import CLibPQ

extension PostgresError {
    /// The server's report of a statement that failed.
    init(report: borrowing ResultHandle, _ sqlState: SQLState) {
        self.init(.server, report.errorField(CLIBPQ_DIAG_MESSAGE) ?? "", sqlState: sqlState)
        detail = report.errorField(CLIBPQ_DIAG_DETAIL)
        hint = report.errorField(CLIBPQ_DIAG_HINT)
        schemaName = report.errorField(CLIBPQ_DIAG_SCHEMA)
        tableName = report.errorField(CLIBPQ_DIAG_TABLE)
        columnName = report.errorField(CLIBPQ_DIAG_COLUMN)
        constraintName = report.errorField(CLIBPQ_DIAG_CONSTRAINT)
    }

    /// libpq's report of a connection that could not be made, in its verbose form: `…: FATAL:  28P01: password …`,
    /// then a line `LOCATION:  …`. It names hosts, users and databases, never a password.
    init(connectionFailure report: String) {
        var state: SQLState?
        let lines = report.split(whereSeparator: \.isNewline)
            .filter { !$0.hasPrefix("LOCATION:") }
            .map { line in
                guard let (code, range) = Self.sqlState(in: line) else { return String(line) }
                state = code
                return line[..<range.lowerBound] + " " + line[range.upperBound...]
            }
        let text = lines.joined(separator: "\n").singleLine
        self.init(
            .connectionFailed,
            text.isEmpty ? "no connection to PostgreSQL could be made" : text,
            sqlState: state
        )
    }

    /// Why none of several hosts could be connected to: the last failure, with what the others said before.
    init(connectionFailures failures: [PostgresError]) {
        guard let last = failures.last else {
            self.init(.connectionFailed, "no host of PostgreSQL is configured")
            return
        }
        var texts: [String] = []
        for failure in failures where !texts.contains(failure.message) { texts.append(failure.message) }
        self.init(last.code, texts.joined(separator: "; "), sqlState: last.sqlState)
    }

    /// Finds `  28P01: ` and where it stands.
    private static func sqlState(in line: Substring) -> (SQLState, Range<Substring.Index>)? {
        var start = line.startIndex
        while let found = line[start...].firstIndex(of: ":") {
            let after = line[line.index(after: found)...]
            let code = after.dropFirst(2).prefix(5)
            if after.hasPrefix("  "), code.count == 5, code.allSatisfy({ "0"..."9" ~= $0 || "A"..."Z" ~= $0 }),
                line[code.endIndex...].hasPrefix(": ")
            {
                let end = line.index(code.endIndex, offsetBy: 2)
                return (SQLState(rawValue: String(code)), line.index(after: found)..<end)
            }
            start = line.index(after: found)
        }
        return nil
    }
}
