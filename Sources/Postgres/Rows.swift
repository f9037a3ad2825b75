/// The rows that a statement returned, in PostgreSQL's binary form, read by row and column number from 0.
///
/// Reading a value makes that value and nothing else. A row or column that is not there is a mistake of the caller and
/// ends the process; a value of another type, or NULL where none is expected, throws `decoding`.
package struct Rows: ~Copyable {
    private let result: ResultHandle

    init(_ result: consuming ResultHandle) {
        self.result = result
    }

    /// How many rows there are.
    package var count: Int { result.rowCount }

    /// Whether there is no row.
    package var isEmpty: Bool { result.rowCount == 0 }

    /// How many rows the command inserted, updated, deleted or selected.
    package var affectedRows: Int { result.affectedRows }

    /// Whether a value is NULL.
    package func isNull(_ row: Int, _ column: Int) -> Bool {
        result.isNull(row, column)
    }

    /// A text, or a value of a user's enum.
    package func string(_ row: Int, _ column: Int) throws(PostgresError) -> String {
        try notNull(optionalString(row, column), column)
    }

    /// A text, or nil for NULL.
    package func optionalString(_ row: Int, _ column: Int) throws(PostgresError) -> String? {
        guard !result.isNull(row, column) else { return nil }
        let type = result.type(ofColumn: column)
        switch type {
        case ServerType.text, ServerType.varchar, ServerType.bpchar, ServerType.name, ServerType.json,
            ServerType.char, ServerType.unknown, ServerType.firstOfUsers...:
            return unsafe result.withValue(row, column) { unsafe String(decoding: $0, as: UTF8.self) }
        case ServerType.jsonb:
            // One byte for the version of the form precedes the text.
            return unsafe result.withValue(row, column) { unsafe String(decoding: $0.dropFirst(), as: UTF8.self) }
        default:
            throw mismatch(column, "text")
        }
    }

    /// A `bigint`, `integer` or `smallint`.
    package func int64(_ row: Int, _ column: Int) throws(PostgresError) -> Int64 {
        try notNull(optionalInt64(row, column), column)
    }

    /// A `bigint`, `integer` or `smallint`, or nil for NULL.
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

    /// An `integer` or `smallint`, or nil for NULL.
    package func optionalInt32(_ row: Int, _ column: Int) throws(PostgresError) -> Int32? {
        guard !result.isNull(row, column) else { return nil }
        switch result.type(ofColumn: column) {
        case ServerType.int4: return try integer(row, column, Int32.self)
        case ServerType.int2: return Int32(try integer(row, column, Int16.self))
        default: throw mismatch(column, "integer")
        }
    }

    /// A `boolean`.
    package func bool(_ row: Int, _ column: Int) throws(PostgresError) -> Bool {
        try notNull(optionalBool(row, column), column)
    }

    /// A `boolean`, or nil for NULL.
    package func optionalBool(_ row: Int, _ column: Int) throws(PostgresError) -> Bool? {
        guard !result.isNull(row, column) else { return nil }
        guard result.type(ofColumn: column) == ServerType.bool else { throw mismatch(column, "boolean") }
        return try integer(row, column, UInt8.self) != 0
    }

    /// A `timestamptz`.
    package func timestamp(_ row: Int, _ column: Int) throws(PostgresError) -> Timestamp {
        try notNull(optionalTimestamp(row, column), column)
    }

    /// A `timestamptz`, or nil for NULL.
    package func optionalTimestamp(_ row: Int, _ column: Int) throws(PostgresError) -> Timestamp? {
        guard !result.isNull(row, column) else { return nil }
        guard result.type(ofColumn: column) == ServerType.timestamptz else { throw mismatch(column, "timestamptz") }
        return Timestamp(serverValue: try integer(row, column, Int64.self))
    }

    /// A `bytea`, or the UTF-8 of a text.
    package func bytes(_ row: Int, _ column: Int) throws(PostgresError) -> [UInt8] {
        try notNull(optionalBytes(row, column), column)
    }

    /// A `bytea`, or the UTF-8 of a text; nil for NULL.
    package func optionalBytes(_ row: Int, _ column: Int) throws(PostgresError) -> [UInt8]? {
        guard !result.isNull(row, column) else { return nil }
        switch result.type(ofColumn: column) {
        case ServerType.bytea, ServerType.text, ServerType.varchar:
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
