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

    /// A text, or a value of a user's enum.
    package func string(_ row: Int, _ column: Int) throws(PostgresError) -> String {
        try notNull(optionalString(row, column), column)
    }

    package func optionalString(_ row: Int, _ column: Int) throws(PostgresError) -> String? {
        guard !result.isNull(row, column) else { return nil }
        // The bytes are valid during the closure, and the string copies them.
        switch result.type(ofColumn: column) {
        case ServerType.text, ServerType.varchar, ServerType.bpchar, ServerType.name, ServerType.json,
            ServerType.char, ServerType.unknown, ServerType.firstOfUsers...:
            return unsafe result.withValue(row, column) { unsafe String(decoding: $0, as: UTF8.self) }
        case ServerType.jsonb:
            // One byte with the version of the format precedes the text.
            return unsafe result.withValue(row, column) { unsafe String(decoding: $0.dropFirst(), as: UTF8.self) }
        default:
            throw mismatch(column, "text")
        }
    }

    /// A `bigint`, `integer` or `smallint`.
    package func int64(_ row: Int, _ column: Int) throws(PostgresError) -> Int64 {
        try notNull(optionalInt64(row, column), column)
    }

    package func optionalInt64(_ row: Int, _ column: Int) throws(PostgresError) -> Int64? {
        guard !result.isNull(row, column) else { return nil }
        switch result.type(ofColumn: column) {
        case ServerType.int8: return try integer(row, column, Int64.self)
        case ServerType.int4: return Int64(try integer(row, column, Int32.self))
        case ServerType.int2: return Int64(try integer(row, column, Int16.self))
        default: throw mismatch(column, "an integer")
        }
    }

    /// An `integer` or `smallint`.
    package func int32(_ row: Int, _ column: Int) throws(PostgresError) -> Int32 {
        try notNull(optionalInt32(row, column), column)
    }

    package func optionalInt32(_ row: Int, _ column: Int) throws(PostgresError) -> Int32? {
        guard !result.isNull(row, column) else { return nil }
        switch result.type(ofColumn: column) {
        case ServerType.int4: return try integer(row, column, Int32.self)
        case ServerType.int2: return Int32(try integer(row, column, Int16.self))
        default: throw mismatch(column, "integer")
        }
    }

    package func bool(_ row: Int, _ column: Int) throws(PostgresError) -> Bool {
        try notNull(optionalBool(row, column), column)
    }

    package func optionalBool(_ row: Int, _ column: Int) throws(PostgresError) -> Bool? {
        guard !result.isNull(row, column) else { return nil }
        guard result.type(ofColumn: column) == ServerType.bool else { throw mismatch(column, "boolean") }
        return try integer(row, column, UInt8.self) != 0
    }

    package func timestamp(_ row: Int, _ column: Int) throws(PostgresError) -> Timestamp {
        try notNull(optionalTimestamp(row, column), column)
    }

    package func optionalTimestamp(_ row: Int, _ column: Int) throws(PostgresError) -> Timestamp? {
        guard !result.isNull(row, column) else { return nil }
        guard result.type(ofColumn: column) == ServerType.timestamptz else { throw mismatch(column, "timestamptz") }
        return Timestamp(serverValue: try integer(row, column, Int64.self))
    }

    /// A `bytea`, or the UTF-8 of a text.
    package func bytes(_ row: Int, _ column: Int) throws(PostgresError) -> [UInt8] {
        try notNull(optionalBytes(row, column), column)
    }

    package func optionalBytes(_ row: Int, _ column: Int) throws(PostgresError) -> [UInt8]? {
        guard !result.isNull(row, column) else { return nil }
        switch result.type(ofColumn: column) {
        case ServerType.bytea, ServerType.text, ServerType.varchar:
            // The bytes are valid during the closure, and the array copies them.
            return unsafe result.withValue(row, column) { unsafe Array($0) }
        default:
            throw mismatch(column, "bytea")
        }
    }

    // MARK: - Private parts

    private func integer<T: FixedWidthInteger>(
        _ row: Int,
        _ column: Int,
        _ type: T.Type
    ) throws(PostgresError) -> T {
        // The length is checked before the bytes are loaded.
        let value: T? = unsafe result.withValue(row, column) { bytes in
            guard bytes.count == MemoryLayout<T>.size else { return nil }
            return unsafe T(bigEndian: bytes.loadUnaligned(as: T.self))
        }
        guard let value else { throw mismatch(column, "\(type)") }
        return value
    }

    private func notNull<T>(_ value: T?, _ column: Int) throws(PostgresError) -> T {
        guard let value else {
            throw PostgresError(
                .decoding,
                "column \(column) (\(result.columnName(column))) is NULL; read it as an optional, or make it NOT NULL"
            )
        }
        return value
    }

    private func mismatch(_ column: Int, _ wanted: String) -> PostgresError {
        PostgresError(
            .decoding,
            "column \(column) (\(result.columnName(column))) has type \(result.type(ofColumn: column)), not \(wanted); "
                + "cast it in the statement"
        )
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
    var affectedRows: Int {
        guard let count = unsafe PQcmdTuples(raw) else { return 0 }
        return unsafe Int(String(cString: count)) ?? 0
    }

    func errorField(_ code: Int) -> String? {
        guard let text = unsafe PQresultErrorField(raw, Int32(code)) else { return nil }
        return unsafe String(cString: text)
    }

    /// The whole report, for errors of libpq itself, which have no fields.
    var errorMessage: String {
        guard let text = unsafe PQresultErrorMessage(raw) else { return "" }
        return unsafe String(cString: text)
    }

    func columnName(_ column: Int) -> String {
        guard let name = unsafe PQfname(raw, Int32(column)) else { return "" }
        return unsafe String(cString: name)
    }

    func type(ofColumn column: Int) -> UInt32 {
        unsafe PQftype(raw, Int32(column))
    }

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
