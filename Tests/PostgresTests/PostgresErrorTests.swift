import Postgres
import TestSupport
import Testing

@Suite("Errors")
struct PostgresErrorTests {
    @Test("The description contains names from the server's report, but no values.")
    func redaction() async throws {
        try await withConnection { connection in
            try await connection.script("CREATE TABLE public.people (name text CONSTRAINT people_name_key UNIQUE)")
            let insert = Statement("INSERT INTO public.people VALUES ($1)")
            let unique = await postgresError {
                try await connection.withSession { session throws(PostgresError) in
                    for _ in 1...2 { _ = try session.execute(insert, Binds { $0.append("secret@example.com") }) }
                }
            }
            #expect(unique?.sqlState == .uniqueViolation)
            #expect(unique?.detail?.contains("secret@example.com") == true)
            #expect(
                unique?.description == "PostgreSQL refused a statement (SQLSTATE 23505), constraint people_name_key"
            )

            let syntax = await postgresError {
                try await connection.withSession { session throws(PostgresError) in
                    _ = try session.execute(Statement(once: "SELECT $1::text::int"), Binds { $0.append("secret") })
                }
            }
            #expect(syntax?.description == "PostgreSQL refused a statement (SQLSTATE 22P02)")
            #expect(syntax?.isDataError == true)

            let missing = await postgresError { try await connection.integer("SELECT n FROM nothing") }
            #expect(missing?.sqlState == .undefinedTable)
            #expect(missing?.description.contains(#"relation "nothing" does not exist"#) == true)
        }
    }

    @Test(
        "The SQLSTATE decides whether an error is retryable.",
        arguments: [
            ("40001", true), ("40P01", true), ("53300", true), ("57P03", true), ("55P03", true), ("08006", true),
            ("23505", false), ("22P02", false), ("42601", false), ("55006", false), ("P0001", false),
        ]
    )
    func retryable(code: String, isRetryable: Bool) {
        #expect(PostgresError(.server, "", sqlState: SQLState(rawValue: code)).isRetryable == isRetryable)
    }

    @Test(
        "A server that refuses a connection for its role, its database or their number is not away.",
        arguments: [
            (nil, true), ("08006", true), ("57P03", true), ("57P01", true), ("53300", false), ("28P01", false),
            ("28000", false), ("3D000", false), ("25P04", false),
        ]
    )
    func away(code: String?, isServerAway: Bool) {
        let state = code.map { SQLState(rawValue: $0) }
        #expect(PostgresError(.connectionFailed, "", sqlState: state).isServerAway == isServerAway)
        #expect(PostgresError(.connectionLost, "", sqlState: state).isServerAway == isServerAway)
        #expect(!PostgresError(.server, "", sqlState: state).isServerAway)
    }
}
