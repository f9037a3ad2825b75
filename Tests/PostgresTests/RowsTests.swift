import Postgres
import TestSupport
import Testing

@Suite("Rows")
struct RowsTests {
    @Test("Integers of every width and texts of every type can be read.")
    func kinds() async throws {
        let statement = Statement(
            """
            SELECT 1::smallint, 2::integer, 3::bigint, 'a'::varchar, 'b'::name, '{"c": 1}'::json, '{"d": 1}'::jsonb,
                   'e'::char(2), 'f'::mood
            """
        )
        try await withConnection { connection in
            try await connection.script("CREATE TYPE mood AS ENUM ('f')")
            try await connection.withSession { session throws(PostgresError) in
                let rows = try session.execute(statement)
                #expect(try rows.int64(0, 0) == 1)
                #expect(try rows.int32(0, 0) == 1)
                #expect(try rows.int64(0, 1) == 2)
                #expect(try rows.int64(0, 2) == 3)
                #expect(try rows.string(0, 3) == "a")
                #expect(try rows.string(0, 4) == "b")
                #expect(try rows.string(0, 5) == #"{"c": 1}"#)
                #expect(try rows.string(0, 6) == #"{"d": 1}"#)
                #expect(try rows.string(0, 7) == "e ")
                #expect(try rows.string(0, 8) == "f")
            }
        }
    }

    @Test("A value of another type, or an unexpected NULL, is an error that names the column.")
    func mismatches() async throws {
        try await withConnection { connection in
            try await connection.withSession { session throws(PostgresError) in
                let rows = try session.execute(
                    Statement(once: "SELECT 1.5 AS price, NULL::text AS note, 5::bigint AS n")
                )
                let wrongType = #expect(throws: PostgresError.self) { try rows.int64(0, 0) }
                #expect(wrongType?.code == .decoding)
                #expect(wrongType?.description.contains("price") == true)
                let unexpectedNull = #expect(throws: PostgresError.self) { try rows.string(0, 1) }
                #expect(unexpectedNull?.description.contains("note") == true)
                #expect(throws: PostgresError.self) { try rows.int32(0, 2) }
                #expect(throws: PostgresError.self) { try rows.value(0, 2) as Timestamp }
                #expect(throws: PostgresError.self) { try rows.bytes(0, 2) }
                let isNull = (rows.isNull(0, 0), rows.isNull(0, 1))
                #expect(isNull == (false, true))
            }
        }
    }

    @Test("A command returns the number of affected rows.")
    func affectedRows() async throws {
        try await withConnection { connection in
            try await connection.script("CREATE TABLE public.t (n integer)")
            try await connection.withSession { session throws(PostgresError) in
                let inserted = try session.execute(Statement(once: "INSERT INTO public.t SELECT generate_series(1, 7)"))
                let counts = (inserted.count, inserted.affectedRows)
                #expect(counts == (0, 7))
                #expect(try session.execute(Statement(once: "DELETE FROM public.t WHERE n > 4")).affectedRows == 3)
                #expect(try session.execute(Statement(once: "CREATE TABLE public.u (n integer)")).affectedRows == 0)
            }
        }
    }

    @Test("Timestamps are read correctly whatever their time zone, and the session uses UTC.")
    func times() async throws {
        try await withConnection { connection in
            try await connection.withSession { session throws(PostgresError) in
                let rows = try session.execute(
                    Statement(
                        once: "SELECT '2026-01-02T03:04:05.678901+09:00'::timestamptz, current_setting('TimeZone')"
                    )
                )
                let time: Timestamp = try rows.value(0, 0)
                #expect(time == Timestamp(microseconds: 1_767_290_645_678_901))
                #expect(try rows.string(0, 1) == "UTC")
            }
        }
    }
}
