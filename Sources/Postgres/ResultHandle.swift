import CLibPQ

/// Owns one `PGresult`.
///
/// Safe outside: the pointer stays inside, is freed once, and every access to a value is checked against the result's
/// own bounds first (libpq would print a warning and go on).
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

    /// How many rows the command touched; zero where that means nothing.
    var affectedRows: Int {
        guard let count = unsafe PQcmdTuples(raw) else { return 0 }
        return unsafe Int(String(cString: count)) ?? 0
    }

    /// One field of an error report, in the server's encoding of it.
    func errorField(_ code: Int) -> String? {
        guard let text = unsafe PQresultErrorField(raw, Int32(code)) else { return nil }
        return unsafe String(cString: text)
    }

    /// The whole error report, for errors that libpq itself made and that have no fields.
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
