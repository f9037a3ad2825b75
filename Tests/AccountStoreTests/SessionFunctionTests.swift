import AccountStore
import AppleTokens
import Basics
import Postgres
import StoreTestSupport
import TestSupport
import Testing

extension Store {
    /// The number of pages of the sessions table.
    fileprivate func sessionPages() async throws -> Int {
        let size = try await texts("SELECT (pg_relation_size('siwa.account_sessions') / 8192)::text")
        return size.first.flatMap { Int($0) } ?? 0
    }
}

@Suite("Sessions and the sign-in that they rest on")
struct SessionFunctionTests {
    /// Calls a boolean function.
    func holds(_ call: String, in store: Store) async throws -> Bool {
        try await store.texts("SELECT (siwa.\(call))::text") == ["true"]
    }

    @Test("A session that is rotated between a revocation and its arrival does not survive it.")
    func rotatedBeforeArrival() async throws {
        try await Store.with { store in
            try await store.signIn("p", at: .at(0))
            try await store.openSession("first", of: "p", at: .at(0))
            // The person revokes at 10. The session is rotated now, long after that. Then the notification arrives.
            #expect(try await holds("rotate_session('first', 'second')", in: store))
            #expect(try await store.session("first")?.endReason == "rotated")
            try await store.record(.sample("consent-revoked", sub: "p", at: .at(10), id: "a"))
            let second = try #require(try await store.session("second"))
            #expect(!second.isLive)
            #expect(second.endReason == "consent-revoked")
            #expect(second.signedInAt == .at(0))
            #expect(try #require(second.endedAt) >= second.createdAt, "no session ends before it was opened")
            #expect(try await store.history("p").last?.sessionsEnded == 1)
        }
    }

    @Test("A session that is opened on a revoked consent is not live, however late it is opened.")
    func revokedConsent() async throws {
        try await Store.with { store in
            try await store.signIn("p", at: .at(0))
            try await store.record(.sample("consent-revoked", sub: "p", at: .at(10), id: "a"))
            #expect(try await store.openSession("late", of: "p", at: .now()) == false)
            #expect(try await store.session("late")?.endReason == "consent-revoked")
            try await store.signIn("p", at: .at(20))
            #expect(try await store.openSession("again", of: "p", at: .now()))
            #expect(try await store.session("again")?.signedInAt == .at(20))
            #expect(try await store.session("late")?.isLive == false)
        }
    }

    @Test("A session that rests on an older token, presented late, is ended by a revocation after that token.")
    func olderToken() async throws {
        try await Store.with { store in
            try await store.signIn("p", at: .at(20))
            try await store.record(.sample("consent-revoked", sub: "p", at: .at(10), id: "a"))
            #expect(try await store.openSession("old", of: "p", at: .at(5)) == false)
            #expect(try await store.session("old")?.signedInAt == .at(5))
            #expect(try await store.openSession("new", of: "p", at: .at(30)))
        }
    }

    @Test(
        "Opening a session without a recorded sign-in fails with a hint, and nothing is stored."
    )
    func noSignIn() async throws {
        try await Store.with { store in
            func refusal(client: String = "com.example.one") async -> PostgresError? {
                await #expect(throws: PostgresError.self) {
                    try await store.openSession("s", of: "p", at: .now(), client: client)
                }
            }
            let unknown = await refusal()
            #expect(unknown?.sqlState?.rawValue == "SW003")
            #expect(unknown?.hint?.contains("siwa.record_sign_in") == true)
            #expect(try await store.texts("SELECT sub FROM siwa.accounts").isEmpty)
            try await store.signIn("p", at: .at(0), client: "com.example.two")
            let elsewhere = await refusal()
            #expect(elsewhere?.sqlState?.rawValue == "SW003", "consent is given for each app group")
            try await store.record(.sample("consent-revoked", sub: "p", at: .at(10), id: "a"))
            let onlyRevoked = await refusal()
            #expect(onlyRevoked?.sqlState?.rawValue == "SW003")
        }
    }

    @Test("A repeated rotation returns the stored session; rotating an ended session opens none.")
    func rotation() async throws {
        try await Store.with { store in
            try await store.signIn("p", at: .at(0))
            try await store.run(
                "SELECT siwa.open_session('com.example.one', 'p', 'a', expires_at => now() + interval '1 hour')"
            )
            #expect(try await holds("rotate_session('a', 'b')", in: store))
            #expect(try await holds("rotate_session('a', 'b')", in: store))
            #expect(try await holds("rotate_session('a', 'c')", in: store) == false)
            #expect(try await store.session("c") == nil)
            #expect(try await store.session("b")?.expiresAt == store.session("a")?.expiresAt, "no later than before")
            #expect(try await holds("rotate_session('b', 'd', now() + interval '2 hours')", in: store))
            #expect(try await holds("rotate_session('d', 'e', 'infinity')", in: store))
            #expect(try await store.session("e")?.expiresAt == nil)
            try await store.run("SELECT siwa.end_session('e')")
            #expect(try await holds("rotate_session('e', 'f')", in: store) == false)
            #expect(try await holds("rotate_session('nothing', 'f')", in: store) == false)
            #expect(try await store.texts("SELECT session_id FROM siwa.live_sessions").isEmpty)
        }
    }

    @Test(
        "An expired session cannot be rotated, whatever the new expiry; a repeated rotation returns the stored session."
    )
    func rotationAfterExpiry() async throws {
        try await Store.with { store in
            try await store.signIn("p", at: .at(-7_200))
            try await store.run(
                """
                SELECT siwa.open_session('com.example.one', 'p', 'expired', now() - interval '2 h', now() - interval '1 m');
                SELECT siwa.open_session('com.example.one', 'p', 'old');
                SELECT siwa.rotate_session('old', 'new', now() + interval '1 h');
                UPDATE siwa.account_sessions
                SET created_at = now() - interval '3 h', signed_in_at = now() - interval '3 h',
                    expires_at = now() - interval '1 m'
                WHERE session_id = 'old';
                UPDATE siwa.account_sessions
                SET signed_in_at = (SELECT signed_in_at FROM siwa.account_sessions WHERE session_id = 'old')
                WHERE session_id = 'new';
                """
            )
            for arguments in ["'expired', 'x'", "'expired', 'x', now() + interval '1 h'", "'expired', 'x', now()"] {
                #expect(try await holds("rotate_session(\(arguments))", in: store) == false, "\(arguments)")
            }
            #expect(try await store.session("x") == nil)
            #expect(try await holds("rotate_session('old', 'new')", in: store))
            #expect(try await holds("rotate_session('old', 'new', now() - interval '1 h')", in: store))
        }
    }

    @Test("Opening a session again after it expired returns the stored session, which is not live.")
    func openedAgainAfterExpiry() async throws {
        try await Store.with { store in
            try await store.signIn("p", at: .at(-7_200))
            try await store.signIn("q", at: .at(-7_200))
            let arguments = "'s', now() - interval '2 h', now() - interval '1 h'"
            #expect(try await holds("open_session('com.example.one', 'p', \(arguments))", in: store) == false)
            #expect(try await holds("open_session('com.example.one', 'p', \(arguments))", in: store) == false)
            // With the expiry that the application remembers, and the current time as the default time of opening.
            let again = "'s', expires_at => now() - interval '1 h'"
            #expect(try await holds("open_session('com.example.one', 'p', \(again))", in: store) == false)
            let other = await #expect(throws: PostgresError.self) {
                try await store.run("SELECT siwa.open_session('com.example.one', 'q', \(again))")
            }
            #expect(other?.sqlState?.rawValue == "SW004")
        }
    }

    @Test("Extending changes the expiry of a live session, and revives no ended or expired session.")
    func extending() async throws {
        try await Store.with { store in
            try await store.signIn("p", at: .at(-7_200))
            try await store.openSession("s", of: "p", at: .at(0))
            #expect(try await holds("extend_session('s', now() + interval '1 hour')", in: store))
            #expect(try await store.session("s")?.expiresAt != nil)
            #expect(try await holds("extend_session('s', NULL)", in: store))
            #expect(try await store.session("s")?.expiresAt == nil)
            try await store.run("SELECT siwa.end_session('s')")
            #expect(try await holds("extend_session('s', now() + interval '1 hour')", in: store) == false)
            #expect(try await store.session("s")?.expiresAt == nil)
            try await store.run(
                "SELECT siwa.open_session('com.example.one', 'p', 'old', now() - interval '2 h', now() - interval '1 h')"
            )
            #expect(try await holds("extend_session('old', now() + interval '1 hour')", in: store) == false)
            #expect(try await store.session("old")?.isLive == false)
            #expect(try await holds("extend_session('nothing', now())", in: store) == false)
        }
    }

    @Test("Ending a person's sessions affects one app group, counts live sessions, and keeps earlier ends.")
    func endingAll() async throws {
        try await Store.with { store in
            try await store.signIn("p", at: .at(0))
            try await store.signIn("p", at: .at(0), client: "com.example.two")
            try await store.signIn("q", at: .at(0))
            for id in ["a", "b", "c"] { try await store.openSession(id, of: "p", at: .at(0)) }
            try await store.openSession("elsewhere", of: "p", at: .at(0), client: "com.example.two")
            try await store.openSession("other", of: "q", at: .at(0))
            try await store.run("SELECT siwa.end_session('c', 'operator')")
            let ended = try await store.texts("SELECT siwa.end_sessions('com.example.web', 'p')::text")
            #expect(ended == ["2"])
            #expect(try await store.texts("SELECT siwa.end_sessions('com.example.web', 'p')::text") == ["0"])
            #expect(try await store.texts("SELECT siwa.end_sessions('com.example.one', 'nobody')::text") == ["0"])
            let sessions = try await store.texts(
                """
                SELECT concat_ws(' ', session_id, end_reason) FROM siwa.sessions_of('com.example.one', 'p')
                ORDER BY session_id
                """
            )
            #expect(sessions == ["a signed-out", "b signed-out", "c operator"])
            #expect(try await store.session("elsewhere")?.isLive == true)
            #expect(try await store.session("other")?.isLive == true)
        }
    }

    @Test(
        "Every error for applications has its SQLSTATE and a hint, and contains no value of a row.",
        arguments: [
            ("SW001", "record_sign_in('nope', 'p')"), ("SW001", "open_session('nope', 'p', 'x')"),
            ("SW001", "end_sessions('nope', 'p')"), ("SW002", "record_sign_in('com.example.one', 'gone')"),
            ("SW003", "open_session('com.example.one', 'stranger', 'x')"),
            ("SW004", "open_session('com.example.one', 'q', 's')"), ("SW004", "rotate_session('t', 's')"),
            ("SW004", "open_session('com.example.two', 'p', 's')"),
            ("SW005", "open_session('com.example.one', 'p', 'x', now(), now() - interval '1 hour')"),
            ("SW005", "rotate_session('s', 'x', now() - interval '1 hour')"),
            ("SW005", "extend_session('s', '2020-01-01')"),
            ("SW006", "record_sign_in('com.example.one', 'p', signed_in_at => now() + interval '1 hour')"),
            ("22023", "record_sign_in('com.example.one', '')"), ("22023", "record_sign_in('com.example.one', NULL)"),
            ("22023", "record_sign_in('com.example.one', repeat('x', 5000))"),
            ("22023", "record_sign_in('com.example.one', 'p', repeat('x', 5000))"),
            ("22023", "open_session('com.example.one', 'p', '')"),
            ("22023", "open_session('com.example.one', 'p', repeat('x', 5000))"),
            ("22023", "open_session('com.example.one', 'p', NULL)"), ("22023", "end_session('s', 'because')"),
            ("22023", "end_sessions('com.example.one', 'p', NULL)"), ("22023", "rotate_session('s', NULL)"),
        ]
    )
    func errors(state: String, call: String) async throws {
        try await Store.with { store in
            try await store.signIn("p", at: .at(0), email: "secret@privaterelay.appleid.com")
            try await store.signIn("p", at: .at(0), client: "com.example.two")
            try await store.signIn("q", at: .at(0))
            try await store.signIn("gone", at: .at(0))
            try await store.openSession("s", of: "p", at: .at(0))
            try await store.openSession("t", of: "q", at: .at(0))
            try await store.record(.sample("account-deleted", sub: "gone", at: .at(1), id: "a"))
            let error = await #expect(throws: PostgresError.self) { try await store.run("SELECT siwa.\(call)") }
            #expect(error?.sqlState?.rawValue == state)
            #expect(error?.hint?.isEmpty == false)
            #expect(error?.constraintName == nil, "a constraint would show the row")
            let text = "\(error?.message ?? "") \(error?.hint ?? "")"
            #expect(!text.contains("secret") && !text.contains("xxx"), "\(text)")
        }
    }

    @Test("Sessions that ended or expired before the retention are deleted; live sessions stay, whatever their age.")
    func retention() async throws {
        try await Store.with { store in
            let old = WallTime.at(-100 * 86_400)
            for sub in ["live", "revoked", "deleted", "late"] { try await store.signIn(sub, at: old) }
            for sub in ["live", "revoked", "deleted", "late"] { try await store.openSession(sub, of: sub, at: old) }
            let (longAgo, recently) = (WallTime.at(-31 * 86_400), WallTime.at(-29 * 86_400))
            try await store.connection.withSession { session throws(PostgresError) in
                _ = try Notifications.ensurePartitions(from: longAgo, through: recently, in: session)
            }
            try await store.record(
                .sample("consent-revoked", sub: "revoked", at: longAgo, id: "a"),
                .sample("account-deleted", sub: "deleted", at: longAgo, id: "b"),
                .sample("consent-revoked", sub: "late", at: recently, id: "c")
            )
            try await store.run(
                """
                INSERT INTO siwa.account_sessions
                    (session_id, account_id, app_id, created_at, signed_in_at, expires_at, closed_at, close_reason)
                SELECT name || i, account_id, app_id, t, t, expires, closed, CASE WHEN closed IS NOT NULL THEN 'signed-out' END
                FROM siwa.account_states, generate_series(1, 8000) AS i,
                    LATERAL (SELECT to_timestamp(1790000000) - interval '100 days') AS x (t),
                    LATERAL (VALUES
                        ('expired', t + interval '60 days', NULL::timestamptz), ('closed', NULL, t + interval '60 days'),
                        ('expired lately', t + interval '90 days', NULL), ('closed lately', NULL, t + interval '90 days')
                    ) AS v (name, expires, closed)
                WHERE sub = 'live'
                """
            )
            #expect(try await store.maintain(.sessions).sessionsDeleted == 16_002)
            #expect(try await store.sessionPages() > 256, "one step scans no more than 256 pages")
            let left = try await store.texts(
                "SELECT DISTINCT rtrim(session_id, '0123456789') FROM siwa.account_sessions ORDER BY 1"
            )
            #expect(left == ["closed lately", "expired lately", "late", "live"])
            #expect(try await store.maintain(.sessions).sessionsDeleted == 0)
        }
    }

    @Test("A real address is not suppressed if forwarding to a relay address is off, in any order of arrival.")
    func realAddress() async throws {
        let (relay, real) = ("x@privaterelay.appleid.com", "p@example.com")
        try await Store.with { store in
            let disabled = ReceivedNotification.sample(
                "email-disabled",
                sub: "p",
                at: .at(5),
                id: "a",
                email: relay,
                emailIsPrivate: true
            )
            try await store.record(disabled)
            #expect(try await store.texts("SELECT email FROM siwa.undeliverable_addresses") == [relay])
            try await store.signIn("p", at: .at(10), email: real, emailIsPrivate: false)
            #expect(try await store.texts("SELECT email FROM siwa.undeliverable_addresses").isEmpty)
            #expect(try await store.state("p")?.emailIsDeliverable == true)
            let change = try #require(
                try await store.history("p").first { $0.notificationID == nil && $0.facet == "email" }
            )
            #expect((change.fromState, change.toState) == ("undeliverable", "deliverable"))

            // The same in the other order: the notification is older than the known facts and changes no state.
            try await store.signIn("q", at: .at(10), email: real, emailIsPrivate: false)
            let late = ReceivedNotification.sample(
                "email-disabled",
                sub: "q",
                at: .at(5),
                id: "b",
                email: relay,
                emailIsPrivate: true
            )
            #expect(try await store.record(late) == [.superseded])
            #expect(try await store.history("q").allSatisfy { $0.facet == "consent" })
            #expect(try await store.state("q")?.emailIsDeliverable == true)

            // Later a relay address again: the forwarding state applies to it.
            try await store.signIn("q", at: .at(20), email: relay, emailIsPrivate: true)
            #expect(try await store.state("q")?.emailIsDeliverable == false)
            #expect(try await store.history("q").last?.toState == "undeliverable")
        }
    }

    @Test("A starting daemon keeps the clients of other daemons; an operator removes them.")
    func clients() async throws {
        try await Store.with { store in
            let others = try AudienceMap(parsing: "AAAAAAAAAA/com.example.one+com.example.more")
            let clients = try await store.connection.transaction { session throws(PostgresError) in
                try Clients.add(others, in: session)
                return try Clients.list(limit: 50, in: session).map(\.client.rawValue)
            }
            #expect(
                clients == [
                    "com.example.more", "com.example.one", "com.example.web", "com.example.other", "com.example.two",
                ]
            )
            let removed = try await store.connection.transaction { session throws(PostgresError) in
                try Clients.remove(
                    [ClientID("com.example.two"), ClientID("never")],
                    by: "kim",
                    note: "sold",
                    in: session
                )
            }
            #expect(removed == [ClientID("com.example.two")])
            let audit = try await store.texts(
                "SELECT concat_ws(' ', operator, action, target) FROM siwa.operator_actions"
            )
            #expect(audit == ["kim clients remove com.example.two"])
        }
    }

    @Test("Tokens can be erased while a publication includes the notifications.")
    func publication() async throws {
        try await Store.with { store in
            try await store.run("CREATE PUBLICATION everything FOR ALL TABLES")
            try await store.signIn("p", at: .at(-86_400), email: "x@privaterelay.appleid.com")
            try await store.record(.sample("account-deleted", sub: "p", at: .at(-3_600), id: "a"))
            let effects = try await store.maintain(.erasure, now: .at(40 * 86_400))
            #expect(effects.tokensErased == 1)
            let without = try await store.texts(
                """
                SELECT relname FROM pg_class
                WHERE relnamespace = 'siwa'::regnamespace AND relispartition AND relkind = 'r' AND relreplident <> 'i'
                """
            )
            #expect(without.isEmpty)
        }
    }
}
