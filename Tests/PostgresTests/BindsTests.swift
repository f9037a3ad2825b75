import Postgres
import TestSupport
import Testing

@Suite("Binds")
struct BindsTests {
    private static let texts: [String?] = [
        "", "a", nil, "ü 🎈", "quote ' \\ \"", "{NULL}", String(repeating: "x", count: 10_000),
    ]
    private static let integers: [Int64?] = [0, 1, -1, nil, .max, .min]
    private static let smallIntegers: [Int32?] = [0, nil, .max, .min]
    private static let times: [Timestamp?] = [
        Timestamp(microseconds: 0), nil, Timestamp(microseconds: 1_700_000_000_123_456), .infinity, .negativeInfinity,
        Timestamp(microseconds: -1),
    ]

    @Test("Bound values are returned unchanged.")
    func roundTrip() async throws {
        let statement = Statement("SELECT $1, $2, $3, $4, $5, $6, $7")
        try await withConnection { connection in
            for index in 0..<7 {
                try await connection.withSession { session throws(PostgresError) in
                    let binds = Binds {
                        $0.append(Self.texts[index])
                        $0.append(Self.integers[index % 6])
                        $0.append(Self.smallIntegers[index % 4])
                        $0.append(Self.times[index % 6])
                        $0.append([true, false, nil][index % 3])
                        $0.append([[], [0, 255, 7], nil][index % 3] as [UInt8]?)
                        $0.append(Self.texts[index].map { UTF8Text(rawValue: Array($0.utf8)) })
                    }
                    let rows = try session.execute(statement, binds)
                    #expect(try rows.optionalString(0, 0) == Self.texts[index])
                    #expect(try rows.optionalInt64(0, 1) == Self.integers[index % 6])
                    #expect(try rows.optionalInt32(0, 2) == Self.smallIntegers[index % 4])
                    #expect(try rows.optionalTimestamp(0, 3) == Self.times[index % 6])
                    #expect(try rows.optionalBool(0, 4) == [true, false, nil][index % 3])
                    #expect(try rows.optionalBytes(0, 5) == [[], [0, 255, 7], nil][index % 3])
                    #expect(try rows.optionalString(0, 6) == Self.texts[index])
                }
            }
        }
    }

    @Test("Array elements are returned unchanged, including NULLs.")
    func arrays() async throws {
        let statement = Statement(
            """
            SELECT t, i, s, b, z, y
            FROM unnest($1, $2, $3, $4, $5, $6) WITH ORDINALITY AS a (t, i, s, b, z, y, place) ORDER BY place
            """
        )
        let bools: [Bool?] = [true, nil, false]
        let bytes: [[UInt8]?] = [[], nil, [0, 1]]
        try await withConnection { connection in
            try await connection.withSession { session throws(PostgresError) in
                let binds = Binds {
                    $0.append(array: Self.texts)
                    $0.append(array: Self.integers)
                    $0.append(array: Self.smallIntegers)
                    $0.appendBools(bools.count) { bools[$0] }
                    $0.appendTimestamps(Self.times.count) { Self.times[$0] }
                    $0.append(array: bytes)
                }
                let rows = try session.execute(statement, binds)
                let count = rows.count
                #expect(count == Self.texts.count)
                for row in 0..<count {
                    #expect(try rows.optionalString(row, 0) == Self.texts[row])
                    #expect(try rows.optionalInt64(row, 1) == (row < 6 ? Self.integers[row] : nil))
                    #expect(try rows.optionalInt32(row, 2) == (row < 4 ? Self.smallIntegers[row] : nil))
                    #expect(try rows.optionalBool(row, 3) == (row < 3 ? bools[row] : nil))
                    #expect(try rows.optionalTimestamp(row, 4) == (row < 6 ? Self.times[row] : nil))
                    #expect(try rows.optionalBytes(row, 5) == (row < 3 ? bytes[row] : nil))
                }
            }
        }
    }

    @Test("An array may be empty, or contain only NULLs.")
    func emptyArrays() async throws {
        let statement = Statement("SELECT cardinality($1), cardinality($2), $1 = '{}', $2 = ARRAY[NULL, NULL]::text[]")
        try await withConnection { connection in
            try await connection.withSession { session throws(PostgresError) in
                let binds = Binds {
                    $0.append(array: [Int64?]())
                    $0.appendTextBytes(2) { _ in nil }
                }
                let rows = try session.execute(statement, binds)
                #expect(try rows.int32(0, 0) == 0)
                #expect(try rows.int32(0, 1) == 2)
                #expect(try rows.bool(0, 2))
                #expect(try rows.bool(0, 3))
            }
        }
    }

    @Test("A text with a NUL is refused before it is sent, as a data error.", arguments: [0, 1, 2])
    func nul(place: Int) async throws {
        let binds = Binds {
            $0.append(place == 0 ? "a\0b" : "fine")
            $0.append(array: ["fine", place == 1 ? "\0" : ""])
            $0.append(UTF8Text(rawValue: place == 2 ? [0] : []))
        }
        try await withConnection { connection async throws in
            let error = await postgresError {
                try await connection.withSession { session throws(PostgresError) in
                    _ = try session.execute(Statement("SELECT $1, $2, $3"), binds)
                }
            }
            #expect(error?.code == .usage)
            #expect(error?.isDataError == true)
            #expect(error?.description.contains("$\(place + 1)") == true)
            #expect(try await connection.integer("SELECT 1") == 1)
        }
    }

    @Test("Bytes that are not UTF-8 are refused as a data error.")
    func invalidText() async throws {
        try await withConnection { connection in
            let error = await postgresError {
                try await connection.withSession { session throws(PostgresError) in
                    _ = try session.execute(Statement("SELECT $1"), Binds(UTF8Text(rawValue: [0xC3, 0x28])))
                }
            }
            #expect(error?.sqlState == .characterNotInRepertoire)
            #expect(error?.isDataError == true)
        }
    }
}
