import AccountStore
import Postgres
import TestSupport
import Testing

/// Removes conditions from the functions of publication and deliveries, on each of which a promise rests.
@Suite("Conditions of publication and claims")
struct ConditionMutantTests {
    struct Mutant: Sendable, CustomTestStringConvertible {
        let testDescription: String
        let function: String
        /// Each text is replaced wherever it occurs.
        let changes: [(old: String, new: String)]
        let scenario: Scenario
        /// How the scenario ends with the changes. More than one if that depends on transactions of other tests, which get
        /// their ids from the same server.
        let ends: [End]
    }

    /// The end of a scenario.
    enum End: Sendable, Equatable {
        case seen([String])
        case error(SQLState)
    }

    /// What is done, and what is seen of it.
    enum Scenario: Sendable {
        /// A transaction publishes between two changes of its own; the second time, after a later transaction has ended.
        case ownChanges
        /// A round whose lock was waited for while another round published.
        case overtaken
        /// Two claims, of which the first one settles after it expired.
        case claims

        /// With the functions as they are.
        var expected: End {
            switch self {
            case .ownChanges: .seen(["1 a", "1 a", "2 own", "3 own too", "4 again", "5 again too"])
            case .overtaken: .seen(["1 a", "2 b"])
            case .claims: .seen(["1", "0", "1", "0"])
            }
        }
    }

    /// Holds the round of the publisher `late` back.
    private static let hook = """
        CASE current_setting('application_name') WHEN 'late' THEN pg_advisory_xact_lock_shared(7) END
        """
    private static let arm = """
        FROM siwa.account_changes AS c
                WHERE c.xid >= pg_snapshot_xmax(head.snapshot) AND
        """
    private static let lock = "SELECT * INTO head FROM siwa.publication FOR UPDATE SKIP LOCKED;"

    static let mutants = [
        Mutant(
            testDescription: "a round leaves out the changes of its own transaction",
            function: "publish_changes",
            changes: [("AND c.xid <> pg_current_xact_id()", "")],
            scenario: .ownChanges,
            ends: [
                // The next round publishes the change a second time.
                .error(.uniqueViolation),
                // After the end of a later transaction of another test, only the round itself is wrong.
                .seen(["1 a", "2 own", "1 a", "2 own", "3 own too", "4 again", "5 again too"]),
            ]
        ),
        Mutant(
            testDescription: "a round includes those of the transaction of the round before",
            function: "publish_changes",
            changes: [("head.published_by || ARRAY(", "ARRAY(")],
            scenario: .ownChanges,
            // The changes are lost if a later transaction has ended. For the first two, that is one of another test.
            ends: [.seen(["1 a", "1 a", "2 own", "3 own too"]), .seen(["1 a", "1 a"])]
        ),
        Mutant(
            testDescription: "a round takes its snapshot after the lock",
            function: "publish_changes",
            changes: [
                ("PERFORM \(hook);\n    \(lock)", ""),
                (
                    "WITH fresh AS MATERIALIZED (",
                    """
                    WITH waited AS MATERIALIZED (SELECT \(hook)),
                    locked AS MATERIALIZED (
                        SELECT p.position FROM waited, siwa.publication AS p FOR UPDATE OF p SKIP LOCKED
                    ),
                    gate AS MATERIALIZED (SELECT count(*) FROM locked),
                    fresh AS MATERIALIZED (
                    """
                ), (arm, arm.replacing("FROM", with: "FROM gate,")),
            ],
            scenario: .overtaken,
            // The late round publishes the change again.
            ends: [.error(.uniqueViolation)]
        ),
        Mutant(
            testDescription: "a claimed delivery is not claimed again",
            function: "claim_deliveries",
            changes: [
                (
                    "AND (d.claim IS NULL OR d.claimed_until NOT BETWEEN clock_timestamp() AND clock_timestamp() + longest)",
                    ""
                )
            ],
            scenario: .claims,
            ends: [.seen(["1", "1", "1", "0"])]
        ),
        Mutant(
            testDescription: "an outcome counts only for the latest claim",
            function: "settle_deliveries",
            changes: [("AND d.claim = o.claim", "")],
            scenario: .claims,
            ends: [.seen(["1", "0", "1", "1"])]
        ),
    ]

    @Test(
        "Without one of its conditions, a function breaks a promise that it keeps with all of them.",
        arguments: mutants
    )
    func isNeeded(mutant: Mutant) async throws {
        #expect(try await end(of: mutant.scenario) == mutant.scenario.expected)
        let broken = try await end(of: mutant.scenario, mutant)
        #expect(broken != mutant.scenario.expected)
        // Any other end, such as a syntax error, says nothing about the condition.
        #expect(mutant.ends.contains(broken))
    }

    private func end(of scenario: Scenario, _ mutant: Mutant? = nil) async throws -> End {
        try await Store.with { store -> End in
            if case .overtaken = scenario {
                try await store.change("publish_changes", [(Self.lock, "PERFORM \(Self.hook);\n    \(Self.lock)")])
            }
            if let mutant { try await store.change(mutant.function, mutant.changes) }
            do {
                switch scenario {
                case .ownChanges: return .seen(try await ownChanges(store))
                case .overtaken: return .seen(try await overtaken(store))
                case .claims: return .seen(try await claims(store))
                }
            } catch let error as PostgresError {
                guard let state = error.sqlState else { throw error }
                return .error(state)
            }
        }
    }

    // MARK: - Scenarios: each script is a transaction.

    private static let publish = "SELECT siwa.publish_changes();"
    private static let published = "SELECT position || ' ' || sub FROM siwa.changes ORDER BY position"

    private func signIn(_ sub: String) -> String {
        "SELECT siwa.record_sign_in('com.example.one', '\(sub)', signed_in_at => now());"
    }

    private func ownChanges(_ store: Store) async throws -> [String] {
        try await store.run(signIn("a"))
        // The later transaction is the one of the savepoint.
        let later = "SAVEPOINT s; \(signIn("later")) ROLLBACK TO s;"
        var seen: [String] = []
        for (name, before) in [("own", ""), ("again", later)] {
            try await store.run("BEGIN; \(signIn(name)) \(before) \(Self.publish) \(signIn("\(name) too")) COMMIT")
            if seen.isEmpty { seen = try await store.texts(Self.published) }
            for _ in 0..<2 { try await store.run(Self.publish) }
        }
        return try await seen + store.texts(Self.published)
    }

    private func overtaken(_ store: Store) async throws -> [String] {
        for script in [signIn("a"), "SELECT pg_advisory_lock(7)"] { try await store.run(script) }
        let late = try await PostgresConnection.connect(store.database.settings)
        async let round: Void = late.withSession { session throws(PostgresError) in
            try session.execute(script: "SET application_name = 'late'; \(Self.publish)")
        }
        let waiting = """
            SELECT pid::text FROM pg_locks WHERE locktype = 'advisory' AND NOT granted
                AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
            """
        while try await store.texts(waiting).isEmpty { await Task.yield() }
        for script in [Self.publish, signIn("b"), "SELECT pg_advisory_unlock(7)"] { try await store.run(script) }
        try await round
        await late.close()
        for _ in 0..<2 { try await store.run(Self.publish) }
        return try await store.texts(Self.published)
    }

    /// The number of claimed and settled deliveries.
    private func claims(_ store: Store) async throws -> [String] {
        let endpoint = try await store.connection.transaction { session throws(PostgresError) in
            var configuration = EndpointConfiguration(name: "shop", url: "https://shop.example.com/")
            configuration.types = ["siwa.consent.authorized"]
            return try Endpoints.insert(configuration, in: session).id
        }
        for script in [signIn("a"), Self.publish] { try await store.run(script) }
        let claim = "SELECT claim FROM siwa.claim_deliveries(\(endpoint), 9, 9, NULL)"
        let first = try await store.texts(claim)
        let again = try await store.texts(claim)
        try await store.run("UPDATE siwa.deliveries SET claimed_until = now() - interval '1 s'")
        let second = try await store.texts(claim)
        let settled = try await store.texts(
            """
            SELECT siwa.settle_deliveries(
                \(endpoint), '{1}', ARRAY['\(first[0])'], '{delivered}', '{0}', '{NULL}', '{200}', '{NULL}', ARRAY[now()], '{0}'
            )::text
            """
        )
        return ["\(first.count)", "\(again.count)", "\(second.count)", settled[0]]
    }
}
