import AccountStore
import Postgres
import StoreTestSupport
import TestSupport
import Testing

@Suite("Publication after a killed publisher, or in a restored database")
struct PublicationRecoveryTests {
    private func connect(_ store: Store) async throws -> PostgresConnection {
        try await PostgresConnection.connect(store.database.settings)
    }

    @discardableResult
    private func publish(_ store: Store) async throws -> ClosedRange<Int64>? {
        try await store.connection.withSession(Publication.publish)?.positions
    }

    /// The subs of the published changes in the order of their positions.
    private func published(_ store: Store) async throws -> [String] {
        try await store.texts("SELECT sub FROM siwa.changes ORDER BY position")
    }

    private func signIn(_ sub: String) -> String {
        "SELECT siwa.record_sign_in('com.example.one', '\(sub)', signed_in_at => now())"
    }

    /// Adds an endpoint that gets sign-ins, or changes of other types.
    private func addEndpoint(
        _ store: Store,
        _ name: String,
        apps: [String]? = nil,
        types: [String]? = ["siwa.consent.authorized"]
    ) async throws {
        try await store.connection.transaction { session throws(PostgresError) in
            var configuration = EndpointConfiguration(name: name, url: "https://shop.example.com/")
            (configuration.apps, configuration.types) = (apps, types)
            _ = try Endpoints.insert(configuration, in: session)
        }
    }

    /// The sessions of the database that sleep.
    private static let sleeping = """
        FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'PgSleep'
        """

    @Test("While one session publishes, another does not wait, and if the first is killed, a later round publishes.")
    func killed() async throws {
        try await Store.with { store in
            let publisher = try await connect(store)
            try await store.signIn("a", at: Store.now)
            async let held: Void = publisher.transaction { session throws(PostgresError) in
                try session.execute(script: "SELECT siwa.publish_changes(); SELECT pg_sleep(60)")
            }
            while try await store.texts("SELECT pid::text \(Self.sleeping)").isEmpty {}
            #expect(try await publish(store) == nil)
            #expect(try await published(store).isEmpty)
            try await store.run("SELECT pg_terminate_backend(pid) \(Self.sleeping)")
            // Its error is the termination.
            _ = try? await held
            var positions: ClosedRange<Int64>?
            while positions == nil { positions = try await publish(store) }
            #expect(positions == 1...1)
            await publisher.close()
        }
    }

    /// The beginnings of the statements of `siwa.publish_changes`, in their order.
    private static let statements = [
        "SELECT * INTO STRICT head FROM siwa.publication", "PERFORM FROM siwa.account_changes AS c WHERE c.xid >=",
        "PERFORM FROM siwa.account_changes AS c\n        WHERE c.xid = ANY",
        "SELECT * INTO head FROM siwa.publication FOR UPDATE", "IF head.system_identifier <>",
        "WITH fresh AS MATERIALIZED", "IF last > head.position THEN", "PERFORM pg_notify(",
    ]

    @Test(
        "A publisher killed before any of its statements leaves nothing half done.",
        .timeLimit(.minutes(5)),
        arguments: statements
    )
    func killedBefore(statement: String) async throws {
        try await Store.with { store in
            let hook = "IF current_setting('application_name') = 'victim' THEN PERFORM pg_sleep(60); END IF;"
            try await store.change("publish_changes", [(statement, "\(hook)\n    \(statement)")])
            try await addEndpoint(store, "all")
            try await store.signIn("a", at: Store.now)
            try await publish(store)
            // Changes of the transaction that published last, which a round looks for when there are no later ones. So the
            // victim reaches every statement.
            try await store.run(
                """
                BEGIN; \(signIn("own")); \(signIn("own too")); SAVEPOINT s; \(signIn("undone")); ROLLBACK TO s;
                SELECT siwa.publish_changes(); COMMIT
                """
            )
            let victim = try await connect(store)
            async let round: Void = victim.withSession { session throws(PostgresError) in
                try session.execute(script: "SET application_name = 'victim'; SELECT siwa.publish_changes()")
            }
            while try await store.texts("SELECT pid::text \(Self.sleeping)").isEmpty {}
            try await store.run("SELECT pg_terminate_backend(pid) \(Self.sleeping)")
            // Its error is the termination.
            _ = try? await round
            await victim.close()
            #expect(try await published(store) == ["a"])
            try await store.signIn("after", at: Store.now)
            var positions: ClosedRange<Int64>?
            // Until the victim's transaction has ended, its lock is held.
            while positions == nil { positions = try await publish(store) }
            #expect(positions == 2...4)
            #expect(try await publish(store) == nil)
            let changes = try await store.texts("SELECT position || ' ' || sub FROM siwa.changes ORDER BY position")
            #expect(changes == ["1 a", "2 own", "3 own too", "4 after"])
            let deliveries = try await store.texts("SELECT position::text FROM siwa.deliveries ORDER BY position")
            #expect(deliveries == ["1", "2", "3", "4"])
        }
    }

    @Test("After the transaction ids began again, the log continues: nothing is missing and nothing is twice.")
    func rebase() async throws {
        try await Store.with { store in
            try await store.signIn("published", at: Store.now)
            try await publish(store)
            try await store.signIn("restored unpublished", at: Store.now)
            await #expect(throws: PostgresError.self, "it belongs to this cluster") {
                try await store.connection.withSession(Publication.rebase)
            }
            for start in ["system_identifier = 1", "snapshot = '9000000000000:9000000000000:'"] {
                try await store.run("UPDATE siwa.publication SET \(start)")
                let error = await #expect(throws: PostgresError.self) { try await publish(store) }
                #expect(error?.sqlState == .objectNotInPrerequisiteState)
                #expect(try await !store.connection.withSession(Publication.state).belongsToCluster)
                try await store.connection.withSession(Publication.rebase)
                try await store.signIn("after \(start)", at: Store.now)
                #expect(try await publish(store) != nil)
            }
            #expect(try await published(store).count == 4)
            let gaps = try await store.texts("SELECT 'gap' FROM siwa.change_log HAVING max(position) <> count(*)")
            #expect(gaps.isEmpty)
            let columns = "SELECT pg_get_indexdef('siwa.account_changes_xid'::regclass)"
            #expect(try await store.texts(columns)[0].contains("WHERE (xid IS NOT NULL)"))
        }
    }

    @Test("What a rebase publishes reaches the endpoints that want it, once, also paused and disabled ones.")
    func rebaseDelivers() async throws {
        try await Store.with { store in
            try await addEndpoint(store, "all")
            try await addEndpoint(store, "one", apps: ["com.example.one"])
            // Gets a change of the team, which another of its apps reported.
            try await addEndpoint(store, "two", apps: ["com.example.two"], types: nil)
            // Wants the types, and gets nothing because its app belongs to another team.
            let types = ["siwa.consent.authorized", "siwa.email.forwarding_disabled"]
            try await addEndpoint(store, "other", apps: ["com.example.other"], types: types)
            for (status, reason) in [("paused", "operator"), ("disabled", "gone")] {
                try await addEndpoint(store, status)
                let change = "status = '\(status)', status_reason = '\(reason)'"
                try await store.run("UPDATE siwa.endpoints SET \(change) WHERE name = '\(status)'")
            }
            try await store.signIn("published", at: Store.now)
            try await publish(store)
            try await store.signIn("waiting", at: Store.now)
            try await store.record(
                .sample("email-disabled", sub: "waiting", at: .at(1), id: "off", email: "a@b.example")
            )
            try await store.run("UPDATE siwa.publication SET system_identifier = 1")
            try await store.connection.withSession(Publication.rebase)
            try await store.signIn("after", at: Store.now)
            while try await publish(store) != nil {}
            let deliveries = try await store.texts(
                """
                SELECT concat_ws(' ', e.name, c.position, c.sub, c.type)
                FROM siwa.deliveries AS d JOIN siwa.endpoints AS e USING (endpoint_id) JOIN siwa.changes AS c USING (position)
                WHERE d.account_id = c.account_id AND d.status = 'pending'
                ORDER BY e.name, c.position
                """
            )
            let signIns = ["all", "disabled", "one", "paused"].flatMap { name in
                ["1 published", "2 waiting", "4 after"].map { "\(name) \($0) siwa.consent.authorized" }
            }
            #expect(deliveries == signIns + ["two 3 waiting siwa.email.forwarding_disabled"])
            #expect(try await store.texts("SELECT count(*)::text FROM siwa.deliveries") == ["\(deliveries.count)"])
        }
    }
}
