import CLibPQ

/// The rows that a statement returned, in PostgreSQL's binary form, read by row and column number from 0.
///
/// A row or column that does not exist is a programming error and ends the process; a value of another type, or an
/// unexpected NULL, throws `decoding`.
package struct Rows: ~Copyable {
    private let result: ResultHandle

    init(_ result: consuming ResultHandle) {
        self.result = result
    }

    package var count: Int { result.rowCount }
    package var isEmpty: Bool { result.rowCount == 0 }
    /// The number of rows that the command inserted, updated, deleted or selected.
    package var affectedRows: Int { result.affectedRows }

    package func isNull(_ row: Int, _ column: Int) -> Bool {
        result.isNull(row, column)
    }

    package func value<Value: PostgresValue>(_ row: Int, _ column: Int) throws(PostgresError) -> Value {
        guard !isNull(row, column) else {
            if let null = Value.null { return null }
            throw unreadable(column, "is NULL; read it as an optional, or make it NOT NULL")
        }
        let type = result.type(ofColumn: column)
        // The value copies the bytes that it keeps.
        if let value = unsafe result.withValue(row, column, { unsafe Value(type, $0) }) { return value }
        throw unreadable(
            column,
            "has type \(type) and cannot be read as \(Value.self); cast it in the statement, or use the siwad that migrated "
                + "the database"
        )
    }

    package func string(_ row: Int, _ column: Int) throws(PostgresError) -> String { try value(row, column) }
    package func optionalString(_ row: Int, _ column: Int) throws(PostgresError) -> String? { try value(row, column) }
    package func int64(_ row: Int, _ column: Int) throws(PostgresError) -> Int64 { try value(row, column) }
    package func int32(_ row: Int, _ column: Int) throws(PostgresError) -> Int32 { try value(row, column) }
    package func bool(_ row: Int, _ column: Int) throws(PostgresError) -> Bool { try value(row, column) }
    package func bytes(_ row: Int, _ column: Int) throws(PostgresError) -> [UInt8] { try value(row, column) }

    /// What `make` returns for each row. It gets the first columns, in order.
    package func decode<each Column: PostgresValue, Value>(
        _ make: (repeat each Column) throws(PostgresError) -> Value
    ) throws(PostgresError) -> [Value] {
        var values: [Value] = []
        values.reserveCapacity(count)
        for row in 0..<count {
            var column = -1
            func next<Next: PostgresValue>(_ type: Next.Type) throws(PostgresError) -> Next {
                column += 1
                return try value(row, column)
            }
            values.append(try make(repeat try next((each Column).self)))
        }
        return values
    }

    private func unreadable(_ column: Int, _ reason: String) -> PostgresError {
        PostgresError(.decoding, "column \(column) (\(result.columnName(column))) \(reason)")
    }
}

/// Owns one `PGresult`.
///
/// Safe to use: the pointer stays inside, is freed once, and every access to a value is checked against the result's
/// bounds first. libpq would only print a warning.
@safe
struct ResultHandle: ~Copyable {
    private let raw: OpaquePointer
    let rowCount: Int
    let columnCount: Int

    init(owning raw: OpaquePointer) {
        unsafe self.raw = raw
        self.rowCount = unsafe Int(PQntuples(raw))
        self.columnCount = unsafe Int(PQnfields(raw))
    }

    deinit {
        unsafe PQclear(raw)
    }

    var status: ExecStatusType { unsafe PQresultStatus(raw) }

    /// Zero for commands that do not count rows.
    var affectedRows: Int { unsafe String(copying: PQcmdTuples(raw)).flatMap { Int($0) } ?? 0 }

    func errorField(_ code: Int) -> String? { unsafe String(copying: PQresultErrorField(raw, Int32(code))) }

    /// The whole report, for errors of libpq itself, which have no fields.
    var errorMessage: String { unsafe String(copying: PQresultErrorMessage(raw)) ?? "" }

    func columnName(_ column: Int) -> String { unsafe String(copying: PQfname(raw, Int32(column))) ?? "" }

    func type(ofColumn column: Int) -> UInt32 { unsafe PQftype(raw, Int32(column)) }

    func isNull(_ row: Int, _ column: Int) -> Bool {
        checkBounds(row, column)
        return unsafe PQgetisnull(raw, Int32(row), Int32(column)) != 0
    }

    /// Lends the bytes of a value that is not NULL.
    func withValue<R>(_ row: Int, _ column: Int, _ body: (UnsafeRawBufferPointer) -> R) -> R {
        checkBounds(row, column)
        let length = unsafe Int(PQgetlength(raw, Int32(row), Int32(column)))
        let start = unsafe PQgetvalue(raw, Int32(row), Int32(column))
        return unsafe body(UnsafeRawBufferPointer(start: start, count: start == nil ? 0 : length))
    }

    private func checkBounds(_ row: Int, _ column: Int) {
        precondition(row >= 0 && row < rowCount, "row \(row) of a result of \(rowCount)")
        precondition(column >= 0 && column < columnCount, "column \(column) of a result with \(columnCount)")
    }
}

extension String {
    /// Copies a text of libpq, which lives as long as its owner.
    init?(copying text: UnsafePointer<CChar>?) {
        guard let text = unsafe text else { return nil }
        unsafe self.init(cString: text)
    }
}
