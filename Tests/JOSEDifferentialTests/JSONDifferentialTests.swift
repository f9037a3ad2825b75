import JOSE
import Postgres
import StoreTestSupport
import TestSupport
import Testing

/// The reader against another implementation of RFC 8259: PostgreSQL's, which is also the next to parse what siwad takes.
///
/// PostgreSQL is the laxer of the two in three ways, which are asked of it one by one: it takes duplicate member names,
/// deeper nesting and larger objects. Its `json` leaves escapes alone, so NUL and lone surrogates are found by `jsonb`,
/// which in turn has no number beyond 131,072 digits.
@Suite("The JSON reader compared with PostgreSQL")
struct JSONDifferentialTests {
    private static let functions = """
        CREATE FUNCTION pg_temp.has_depth(value json, depth integer) RETURNS boolean LANGUAGE plpgsql AS $$
        BEGIN
            RETURN CASE json_typeof(value)
                WHEN 'object' THEN depth < 33 AND NOT EXISTS (
                    SELECT FROM json_each(value) AS m WHERE NOT pg_temp.has_depth(m.value, depth + 1))
                WHEN 'array' THEN depth < 33 AND NOT EXISTS (
                    SELECT FROM json_array_elements(value) AS e WHERE NOT pg_temp.has_depth(e.value, depth + 1))
                ELSE true END;
        END $$;
        CREATE FUNCTION pg_temp.has_sound_objects(value json) RETURNS boolean LANGUAGE plpgsql AS $$
        BEGIN
            RETURN CASE json_typeof(value)
                WHEN 'object' THEN (
                    SELECT count(*) = count(DISTINCT m.key COLLATE "C") AND count(*) <= 64
                        AND coalesce(bool_and(pg_temp.has_sound_objects(m.value)), true)
                    FROM json_each(value) AS m)
                WHEN 'array' THEN (
                    SELECT coalesce(bool_and(pg_temp.has_sound_objects(e.value)), true) FROM json_array_elements(value) AS e)
                ELSE true END;
        END $$;
        CREATE FUNCTION pg_temp.takes(bytes bytea) RETURNS boolean LANGUAGE plpgsql AS $$
        DECLARE
            text json;
        BEGIN
            text := convert_from(bytes, 'UTF8')::json;
            BEGIN
                PERFORM text::jsonb;
            EXCEPTION
                WHEN numeric_value_out_of_range THEN NULL;
            END;
            RETURN pg_temp.has_depth(text, 1) AND pg_temp.has_sound_objects(text);
        EXCEPTION
            WHEN data_exception OR statement_too_complex THEN RETURN false;
        END $$;
        """

    /// Which of the texts PostgreSQL takes under our rules, and the same of what the reader writes for each of them.
    private func taken(_ texts: [[UInt8]]) async throws -> [Bool] {
        try await TestDatabase.with { database in
            let connection = try await PostgresConnection.connect(database.settings)
            let taken = try await connection.withSession(deadline: .seconds(300)) { session throws(PostgresError) in
                try session.execute(script: "SET max_stack_depth = '2MB'; " + Self.functions)
                let rows = try session.execute(
                    Statement(once: "SELECT pg_temp.takes(t.b) FROM unnest($1) WITH ORDINALITY AS t (b, n) ORDER BY n"),
                    Binds { $0.append(array: texts) }
                )
                var taken: [Bool] = []
                for row in 0..<rows.count { taken.append(try rows.bool(row, 0)) }
                return taken
            }
            await connection.close()
            return taken
        }
    }

    /// Whether PostgreSQL finds that the two mean the same.
    private func areEqual(_ pairs: [(one: [UInt8], other: [UInt8])]) async throws -> [Bool] {
        try await TestDatabase.with { database in
            let connection = try await PostgresConnection.connect(database.settings)
            let equal = try await connection.withSession(deadline: .seconds(300)) { session throws(PostgresError) in
                let rows = try session.execute(
                    Statement(
                        once: """
                            SELECT convert_from(t.a, 'UTF8')::jsonb = convert_from(t.b, 'UTF8')::jsonb
                            FROM unnest($1, $2) WITH ORDINALITY AS t (a, b, n) ORDER BY n
                            """
                    ),
                    Binds {
                        $0.append(array: pairs.map(\.one))
                        $0.append(array: pairs.map(\.other))
                    }
                )
                var equal: [Bool] = []
                for row in 0..<rows.count { equal.append(try rows.bool(row, 0)) }
                return equal
            }
            await connection.close()
            return equal
        }
    }

    private func isRead(_ text: [UInt8]) -> Bool { (try? JSONValue(parsing: text)) != nil }

    @Test("Both accept the same texts from a list on which parsers disagree.")
    func handWritten() async throws {
        let texts = JSONSamples.all
        for (text, isTaken) in zip(texts, try await taken(texts)) {
            #expect(isRead(text) == isTaken, "\(String(decoding: text.prefix(80), as: UTF8.self))")
        }
    }

    @Test("Both accept the same of ten thousand generated texts, half of them damaged.")
    func generated() async throws {
        var generator = SeededGenerator(seed: 8259)
        var texts: [[UInt8]] = []
        for number in 0..<10_000 {
            var text = Array(JSONSamples.value(depth: 4, using: &generator).utf8)
            if number % 2 == 1 { JSONSamples.damage(&text, using: &generator) }
            texts.append(text)
        }
        let taken = try await taken(texts)
        for (text, isTaken) in zip(texts, taken) {
            #expect(isRead(text) == isTaken, "\(String(decoding: text, as: UTF8.self))")
        }
        #expect((2_000...9_000).contains(taken.count { $0 }), "some are taken and some aren't")
    }

    @Test("Texts that both accept have the same value for both.")
    func meaning() async throws {
        var generator = SeededGenerator(seed: 404)
        var pairs: [(one: [UInt8], other: [UInt8])] = []
        while pairs.count < 2_000 {
            let text = Array(JSONSamples.value(depth: 4, using: &generator).utf8)
            guard let value = try? JSONValue(parsing: text) else { continue }
            pairs.append((text, Array(value.compactText.utf8)))
        }
        for (pair, isEqual) in zip(pairs, try await areEqual(pairs)) {
            #expect(isEqual, "\(String(decoding: pair.one, as: UTF8.self))")
        }
    }
}
