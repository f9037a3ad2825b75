import AccountStore
import Postgres
import StoreTestSupport
import TestSupport
import Testing

@Suite("The holder of the publication")
struct PublicationHolderTests {
    private func script(_ sql: String) -> @Sendable (borrowing Session) throws(PostgresError) -> Void {
        { session throws(PostgresError) in try session.execute(script: sql) }
    }

    private func holder(_ store: Store) async throws -> Int32? {
        try await store.connection.withSession { session throws(PostgresError) in
            try Publication.state(in: session).publisher
        }
    }

    @Test(
        "A transaction of another session that has locked the row of the publication is named.",
        arguments: [
            "SELECT FROM siwa.publication FOR UPDATE", "SELECT FROM siwa.publication FOR SHARE",
            "UPDATE siwa.publication SET position = position",
        ]
    )
    func named(statement: String) async throws {
        try await Store.with { store in
            try await store.database.withOpenTransaction(script(statement)) {
                // It waits for the end of this closure.
                let waiting = try await store.texts(
                    """
                    SELECT pid::text FROM pg_locks
                    WHERE locktype = 'advisory' AND NOT granted
                        AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
                    """
                )
                let found = try await holder(store)
                #expect(found.map { "\($0)" } == waiting.first)
            }
            #expect(try await holder(store) == nil)
        }
    }

    @Test("Neither readers nor the own session are named.")
    func unnamed() async throws {
        try await Store.with { store in
            let reader = try await store.database.withOpenTransaction(script("SELECT position FROM siwa.publication")) {
                try await holder(store)
            }
            #expect(reader == nil)
            let own = try await store.connection.transaction { session throws(PostgresError) in
                try session.execute(script: "SELECT FROM siwa.publication FOR UPDATE")
                return try Publication.state(in: session).publisher
            }
            #expect(own == nil)
        }
    }
}
