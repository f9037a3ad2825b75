package import AppleTokens
package import Basics
package import Postgres

extension Timestamp {
    /// Both count microseconds since 1970-01-01T00:00:00Z.
    init(_ time: WallTime) {
        self.init(microseconds: time.microseconds)
    }
}

/// PostgreSQL's infinities become the ends of the range.
extension WallTime: PostgresValue {
    package static var type: (id: UInt32, array: UInt32) { Timestamp.type }

    package init?(_ type: UInt32, _ bytes: UnsafeRawBufferPointer) {
        guard let timestamp = Timestamp(type, bytes) else { return nil }
        self.init(microseconds: timestamp.microseconds)
    }

    package func write(to binds: inout Binds) { Timestamp(self).write(to: &binds) }
}

extension DeadLetterReason: PostgresValue {}
extension Identifier: PostgresValue {}

extension Rows {
    func time(_ row: Int, _ column: Int) throws(PostgresError) -> WallTime { try value(row, column) }

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
