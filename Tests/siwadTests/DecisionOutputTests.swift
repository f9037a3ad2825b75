import Postgres
import StoreTestSupport
import Terminal
import TestSupport
import Testing

@testable import siwad

@Suite("Decision about many dead letters")
struct DecisionOutputTests {
    @Test("The progress bar's line ends before an error is printed.")
    func failsMidway() async throws {
        try await TestDatabase.with(.siwa) { database in
            let connection = try await PostgresConnection.connect(database.settings)
            try await connection.withSession { session throws(PostgresError) in
                // Enough letters for two transactions: the first is slow enough for a bar, the second fails.
                try session.execute(
                    script: """
                        INSERT INTO siwa.dead_letters (
                            received_at, last_received_at, reason, detail, body, token_digest, sub, aud, verified_kid,
                            verified_at
                        )
                        SELECT now(), now(), 'expired', '', '', sha256(n::text::bytea), 'p', 'com.example.one', 'k', now()
                        FROM generate_series(1, 2001) AS n;
                        CREATE FUNCTION public.enough() RETURNS trigger LANGUAGE plpgsql AS
                        $$
                        BEGIN
                            IF (SELECT count(*) FROM siwa.dead_letters WHERE status = 'discarded') > 2000 THEN
                                RAISE EXCEPTION 'enough';
                            END IF;
                            PERFORM pg_sleep(0.6);
                            RETURN NULL;
                        END
                        $$;
                        CREATE TRIGGER enough AFTER UPDATE ON siwa.dead_letters EXECUTE FUNCTION public.enough()
                        """
                )
            }
            await connection.close()
            let result = await siwad(
                "dead-letters",
                "discard",
                "--all",
                "--note",
                "why",
                environment: ["SIWAD_DATABASE_URL": database.conninfo, "USER": "kim"],
                style: OutputStyle(width: 80, usesColor: false)
            )
            #expect(result.status == .failed)
            #expect(result.output.isEmpty)
            let lines = result.errors.split(separator: "\n")
            try #require(lines.count == 3, "\(result.errors)")
            #expect(lines.first?.contains("2000/2001") == true)
            #expect(lines[1] == "2000 discarded so far; the same command goes on with what is left")
            #expect(lines.last?.hasPrefix("siwad: PostgreSQL refused a statement") == true)
            let observer = try await PostgresConnection.connect(database.settings)
            let counts = try await observer.withSession { session throws(PostgresError) in
                try session.execute(Statement(once: "SELECT affected FROM siwa.operator_actions")).decode {
                    (affected: Int) in affected
                }
            }
            await observer.close()
            #expect(counts == [2000], "the audit has the batch that was committed")
        }
    }
}
