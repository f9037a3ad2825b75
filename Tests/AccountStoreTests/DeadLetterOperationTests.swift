import AccountStore
import AppleTokens
import Basics
import Postgres
import StoreTestSupport
import TestSupport
import Testing

@Suite("Operating on dead letters")
struct DeadLetterOperationTests {
    private static let kinds: [(DeadLetterReason, String, String)] = [
        (.unknownAudience, "com.example.a", "account-deleted"), (.unknownAudience, "com.example.b", "account-delete"),
        (.expired, "com.example.a", "email-enabled"), (.unknownEventType, "com.example.b", "account-frozen"),
    ]

    /// Runs `body` with a letter of each kind, received a minute apart, and their ids.
    private func with(_ body: (Store, [Int64]) async throws -> Void) async throws {
        try await Store.with { store in
            let letters = Self.kinds.enumerated().map { index, kind in
                ReceivedDeadLetter(
                    DeadLetter(
                        reason: kind.0,
                        detail: "A sentence.",
                        notificationID: "j\(index)",
                        audience: kind.1,
                        subject: "person\(index)",
                        eventType: kind.2,
                        verifiedKeyID: "k",
                        token: [UInt8(index)]
                    ),
                    tokenDigest: [UInt8](repeating: UInt8(index), count: 32),
                    receivedAt: .at(60 * index)
                )
            }
            let ids = try await store.connection.withSession { session throws(PostgresError) in
                for letter in letters { _ = try DeadLetters.record([letter], in: session) }
                return try DeadLetters.list(DeadLetterFilter(), status: .open, limit: 9, in: session).map(\.id).sorted()
            }
            try await body(store, ids)
        }
    }

    private func find(_ store: Store, _ filter: DeadLetterFilter, _ status: DeadLetterStatus? = .open) async throws
        -> [Int64]
    {
        try await store.connection.withSession { session throws(PostgresError) in
            try DeadLetters.list(filter, status: status, limit: 9, in: session).map(\.id)
        }
    }

    private func decide(
        _ store: Store,
        _ verb: @Sendable (borrowing Session) throws(PostgresError) -> DeadLetterResolution
    ) async throws -> [Int] {
        let done = try await store.connection.withSession(verb)
        return [done.changed, done.refused]
    }

    @Test("Each condition of the filter applies, all conditions apply together, and the latest letter comes first.")
    func filter() async throws {
        try await with { store, ids in
            let narrow = DeadLetterFilter(reason: .unknownAudience, app: "com.example.b", eventType: "account-delete")
            let cases: [(DeadLetterFilter, [Int])] = [
                (DeadLetterFilter(), [3, 2, 1, 0]),
                (DeadLetterFilter(ids: [ids[2], ids[0], 999]), [2, 0]),
                (DeadLetterFilter(reason: .unknownAudience), [1, 0]),
                (DeadLetterFilter(since: .at(60), until: .at(180)), [2, 1]),
                (DeadLetterFilter(app: "com.example.b"), [3, 1]),
                (DeadLetterFilter(eventType: "account-deleted"), [1, 0]),
                (DeadLetterFilter(subject: "person3"), [3]),
                (narrow, [1]),
            ]
            for (filter, expected) in cases {
                let found = try await find(store, filter)
                #expect(found == expected.map { ids[$0] }, "\(filter.text)")
            }
            let discarded = try await find(store, DeadLetterFilter(), .discarded)
            #expect(discarded.isEmpty)
        }
    }

    @Test("The audit shows a filter as command-line options.")
    func text() {
        #expect(DeadLetterFilter().text == "--all")
        let filter = DeadLetterFilter(ids: [1, 2], reason: .expired, since: WallTime(seconds: 0), app: "a")
        #expect(filter.text == "--id 1 --id 2 --reason expired --since 1970-01-01T00:00:00.000Z --app a")
    }

    @Test("Letters are counted by reason, app and type.")
    func counts() async throws {
        try await with { store, ids in
            try await store.run(
                "UPDATE siwa.dead_letters SET status = 'discarded', resolved_at = now(), "
                    + "resolved_by = 'x' WHERE id = \(ids[0])"
            )
            let counts = try await store.connection.withSession { session throws(PostgresError) in
                var counts: [[DeadLetterCount]] = []
                for grouping in DeadLetterGrouping.allCases {
                    counts.append(
                        try DeadLetters.count(DeadLetterFilter(), status: nil, by: grouping, limit: 9, in: session)
                    )
                }
                return counts
            }
            #expect(counts[0].map(\.group) == ["unknown-event-type", "expired", "unknown-audience"])
            #expect(counts[0].last?.open == 1)
            #expect(counts[0].last?.discarded == 1)
            #expect(counts[0].last?.oldestOpenAt == .at(60))
            #expect(counts[1].map(\.open) == [2, 1])
            #expect(counts[2].count == 4)
        }
    }

    @Test("A discarded letter stays with the operator and the note; reopening makes it open again.")
    func discard() async throws {
        try await with { store, ids in
            let filter = DeadLetterFilter(app: "com.example.a")
            let discarded = try await decide(store) { session throws(PostgresError) in
                try DeadLetters.discard(filter, after: 0, through: .max, limit: 9, by: "kim", note: "sold", in: session)
            }
            #expect(discarded == [2, 0])
            let row = "SELECT concat_ws('|', status, resolved_by, note, attempts) FROM siwa.dead_letters WHERE id = "
            #expect(try await store.texts(row + "\(ids[0])") == ["discarded|kim|sold|1"])
            let reopened = try await decide(store) { session throws(PostgresError) in
                try DeadLetters.reopen(filter, after: 0, through: .max, limit: 9, note: "kept", in: session)
            }
            #expect(reopened == [2, 0])
            #expect(try await store.texts(row + "\(ids[0])") == ["open|kept|1"])
        }
    }

    /// The columns with the operators, and whether the recorded roles are the session's.
    private static let witnesses = """
        SELECT concat_ws(' ', status, resolved_by, resolved_by_role = session_user, last_failed_by, last_failed_by_role = session_user)
        FROM siwa.dead_letters WHERE id =
        """

    @Test("The database records its own role for every resolution and failed replay, and keeps the earlier attempts.")
    func databaseRole() async throws {
        try await with { store, ids in
            let id = ids[0]
            let letter = DeadLetter(reason: .expired, detail: "Too old.", verifiedKeyID: "k", token: [0])
            for name in ["kim", "lee"] {
                try await store.connection.transaction { session throws(PostgresError) in
                    try DeadLetters.fail([FailedDeadLetter(id: id, letter: letter)], by: name, in: session)
                }
            }
            #expect(try await store.texts("\(Self.witnesses) \(id)") == ["open lee t"])
            let attempts = try await store.texts(
                """
                SELECT concat_ws(' ', attempt, operator, database_role = session_user, reason)
                FROM siwa.dead_letter_attempts WHERE letter_id = \(id) ORDER BY attempt
                """
            )
            #expect(attempts == ["1 unknown-audience", "2 kim t expired"])
            let filter = DeadLetterFilter(ids: [id])
            _ = try await decide(store) { session throws(PostgresError) in
                try DeadLetters.discard(filter, after: 0, through: .max, limit: 9, by: "ada", note: "x", in: session)
            }
            #expect(try await store.texts("\(Self.witnesses) \(id)") == ["discarded ada t lee t"])
            _ = try await decide(store) { session throws(PostgresError) in
                try DeadLetters.reopen(filter, after: 0, through: .max, limit: 9, note: "y", in: session)
            }
            #expect(try await store.texts("\(Self.witnesses) \(id)") == ["open lee t"])
        }
    }

    @Test(
        "No statement can make the database record a role other than the one that runs it.",
        arguments: [
            "UPDATE siwa.dead_letters SET resolved_by_role = 'forged', last_failed_by_role = 'forged'",
            "UPDATE siwa.dead_letters SET resolved_by = 'kim', resolved_by_role = 'forged'",
            "UPDATE siwa.dead_letters SET last_failed_by = 'kim', last_failed_by_role = 'forged'",
            "UPDATE siwa.dead_letters SET note = 'another', resolved_by_role = 'forged'",
            """
            INSERT INTO siwa.dead_letters (
                received_at, last_received_at, reason, detail, body, token_digest, verified_kid, verified_at, status,
                resolved_at, resolved_by, resolved_by_role, last_failed_at, last_failed_by, last_failed_by_role
            )
            SELECT
                now(), now(), 'expired', '', '', sha256('x'), 'k', now(), 'discarded', now(), 'kim', 'forged', now(), 'kim', 'forged'
            """,
        ]
    )
    func forgedRole(statement: String) async throws {
        try await with { store, _ in
            try await store.run(
                """
                UPDATE siwa.dead_letters
                SET status = 'discarded', resolved_at = now(), resolved_by = 'ada', last_failed_at = now(), last_failed_by = 'ada'
                """
            )
            try await store.run(statement)
            let roles = try await store.texts(
                """
                SELECT DISTINCT role FROM siwa.dead_letters, LATERAL (VALUES (resolved_by_role), (last_failed_by_role)) AS v (role)
                WHERE role <> session_user
                """
            )
            #expect(roles.isEmpty)
        }
    }

    @Test("A later change by another role replaces the recorded role, whichever column it changes.")
    func laterHand() async throws {
        try await with { store, ids in
            let role = store.database.name + "_second"
            try await store.run("CREATE ROLE \(role) LOGIN SUPERUSER")
            try await store.run(
                "UPDATE siwa.dead_letters SET status = 'discarded', resolved_at = now(), resolved_by = 'ada'"
            )
            let settings = try ConnectionSettings(
                conninfo: "\(store.database.conninfo) user=\(role)",
                applicationName: "tests"
            )
            let other = try await PostgresConnection.connect(settings)
            try await other.withSession { session throws(PostgresError) in
                try session.execute(
                    script: """
                        UPDATE siwa.dead_letters SET resolved_by = 'kim' WHERE id = \(ids[0]);
                        UPDATE siwa.dead_letters SET body = '' WHERE id = \(ids[1]);
                        """
                )
            }
            await other.close()
            let roles = try await store.texts(
                "SELECT (resolved_by_role = session_user)::text FROM siwa.dead_letters ORDER BY id"
            )
            #expect(roles == ["false", "true", "true", "true"])
            try await store.run("DROP ROLE \(role)")
        }
    }

    @Test("A discarded letter stays discarded if its token has an open letter; of two equal letters, one is opened.")
    func reopenAlike() async throws {
        try await with { store, ids in
            try await store.run(
                """
                UPDATE siwa.dead_letters SET status = 'discarded', resolved_at = now(), resolved_by = 'x' WHERE id <> \(ids[3]);
                UPDATE siwa.dead_letters SET token_digest = (SELECT token_digest FROM siwa.dead_letters WHERE id = \(ids[3]))
                WHERE id = \(ids[2]);
                UPDATE siwa.dead_letters SET token_digest = (SELECT token_digest FROM siwa.dead_letters WHERE id = \(ids[0]))
                WHERE id = \(ids[1]);
                """
            )
            let reopened = try await decide(store) { session throws(PostgresError) in
                try DeadLetters.reopen(
                    DeadLetterFilter(),
                    after: 0,
                    through: .max,
                    limit: 9,
                    note: "kept",
                    in: session
                )
            }
            #expect(reopened == [1, 2])
            let open = try await find(store, DeadLetterFilter())
            #expect(open == [ids[3], ids[0]])
        }
    }

    @Test("A batch of a replay reads few rows more than it claims, with and without planner statistics.")
    func claimReadsWhatItTakes() async throws {
        try await Store.with { store in
            try await store.run(
                """
                INSERT INTO siwa.dead_letters
                    (received_at, last_received_at, reason, detail, body, token_digest, aud, sub, verified_kid, verified_at)
                SELECT now(), now(), 'expired', 'A sentence.', 'body', sha256(n::text::bytea), 'com.example.a', 'p' || n % 900,
                    'k', now()
                FROM generate_series(1, 3000) AS n
                """
            )
            for preparation in ["SELECT 1", "ANALYZE siwa.dead_letters"] {
                try await store.run(preparation)
                for filter in [DeadLetterFilter(), DeadLetterFilter(app: "com.example.a")] {
                    let reads = try await store.connection.transaction { transaction throws(PostgresError) in
                        let start = try Self.rowsRead(in: transaction)
                        let ids = try DeadLetters.claim(filter, after: 1000, through: 3000, limit: 20, in: transaction)
                        let middle = try Self.rowsRead(in: transaction)
                        let earlier = try DeadLetters.precedents(
                            filter,
                            after: 1000,
                            through: 3000,
                            limit: 20,
                            in: transaction
                        )
                        #expect(ids.map(\.id) == Array(1001...1020))
                        #expect(earlier == Array(101...120))
                        return [middle - start, try Self.rowsRead(in: transaction) - middle]
                    }
                    #expect(reads.allSatisfy { $0 <= 200 }, "\(preparation), \(filter.text): \(reads)")
                }
            }
        }
    }

    private static func rowsRead(in session: borrowing Session) throws(PostgresError) -> Int {
        let statement = Statement(
            once: """
                SELECT (seq_tup_read + idx_tup_fetch)::text FROM pg_stat_xact_user_tables
                WHERE relid = 'siwa.dead_letters'::regclass
                """
        )
        return Int(try session.execute(statement, Binds()).string(0, 0)) ?? .max
    }
}
