import AppleTokens
import Postgres

extension Timestamp {
    /// Both count microseconds since 1970-01-01T00:00:00Z.
    init(_ time: WallTime) {
        self.init(microseconds: time.microseconds)
    }
}

extension WallTime {
    /// PostgreSQL's infinities become the ends of the range.
    init(_ timestamp: Timestamp) {
        self.init(microseconds: timestamp.microseconds)
    }
}

extension Rows {
    func time(_ row: Int, _ column: Int) throws(PostgresError) -> WallTime {
        WallTime(try timestamp(row, column))
    }

    /// nil for NULL.
    func optionalTime(_ row: Int, _ column: Int) throws(PostgresError) -> WallTime? {
        try optionalTimestamp(row, column).map { WallTime($0) }
    }

    /// The values that `read` makes of the rows.
    func map<Value>(_ read: (borrowing Rows, Int) throws(PostgresError) -> Value) throws(PostgresError) -> [Value] {
        var values: [Value] = []
        values.reserveCapacity(count)
        for row in 0..<count {
            values.append(try read(self, row))
        }
        return values
    }
}

extension String {
    /// The text of a `.sql` file that is embedded in the binary.
    init(sql file: [UInt8]) {
        self.init(decoding: file, as: UTF8.self)
    }
}
