import Basics
import Postgres
import StoreTestSupport
import TestSupport
import Testing

@testable import AccountStore
@testable import AppleTokens

@Suite("Sign-ins that are written together", .timeLimit(.minutes(5)))
struct SignInBatchTests {
    private static let email = VerifiedIdentity.Email(address: "x@privaterelay.appleid.com", isPrivate: true)

    /// How sign-ins are written.
    private enum Way {
        case alone, together
        /// Without codes, and without being reserved.
        case whole
    }

    @Test(
        "Together, sign-ins of several people have the results and effects that they have one after another.",
        arguments: [true, false]
    )
    func sameResults(hasCodes: Bool) async throws {
        func perform(_ way: Way) async throws -> (answers: [String], rows: [String]) {
            try await Store.with { store in
                try await store.record(.sample("email-enabled", sub: "known", at: .at(-20), id: "e", email: "a@b"))
                try await store.signInWhole("before", of: "back", at: .at(-10), name: .init(given: "Old", family: nil))
                try await store.signInWhole("token", of: "kept", at: .at(-10), refresh: .stored)
                try await store.signInWhole("since", of: "late", at: .at(5), name: .init(given: "Newer", family: nil))
                try await store.signInWhole("same", of: "again", at: .at(0))
                let people = ["new", "bare", "known", "back", "kept", "later", "late", "again"]
                var requests: [NewSignIn] = []
                var settlements: [Settlement] = []
                for sub in people {
                    let session = sub == "bare" ? nil : "s-\(sub)"
                    let device = SignInDevice(platform: sub == "new" ? "ios" : nil, model: nil, label: nil)
                    let attempt = sub == "bare" ? "attempt" : nil
                    let new = NewSignIn.sample(sub, of: sub, attempt: attempt, session: session, device: device)
                    let id =
                        switch way {
                        case .alone: try await store.reserve(new).signInID
                        case .together: try await store.reserveTogether([new])[0]
                        case .whole: Int64(0)
                        }
                    requests.append(new)
                    settlements.append(.sample(try #require(id), of: sub, session: session))
                }
                settlements[0].name = .init(given: "Maria", family: "Ruiz")
                if hasCodes { settlements[0].refresh = .stored }
                settlements[0].realUserStatus = "likely-real"
                for index in [0, 2, 4, 6] { settlements[index].email = Self.email }
                settlements[3].name = .init(given: "New", family: "Name")
                settlements[4].session = .init(id: "s-kept", createdAt: .at(0), expiresAt: .at(1))
                settlements[5].name = .init(given: "Hidden", family: nil)
                settlements[5].keepsNames = false
                if hasCodes { settlements[5].refresh = .pending(sealedCode: [1, 2], due: .at(60)) }
                settlements[6].name = .init(given: "Older", family: nil)
                var answers: [String] = []
                if way != .alone {
                    let unreserved = way == .whole ? requests : []
                    for answer in try await store.settleTogether(settlements, unreserved: unreserved) {
                        answers.append("\(try #require(answer))")
                    }
                } else {
                    for settlement in settlements {
                        answers.append("\(try #require(try await store.settle(settlement).answer))")
                    }
                }
                return (answers, try await store.texts(Self.effects))
            }
        }
        let (together, alone) = (try await perform(hasCodes ? .together : .whole), try await perform(.alone))
        #expect(together.answers == alone.answers)
        #expect(together.rows == alone.rows)
        #expect(together.rows.count == 8 + 4)
    }

    /// All that sign-ins write, but for times of the server and revisions.
    private static let effects = """
        SELECT concat_ws(
            ' ', a.sub, a.email, a.email_is_private, a.email_observed_at, c.app_id, c.authorized_at, c.revoked_at,
            s.sign_in_id, s.presented_digest, s.nonce_digest, s.client_id, s.flow, s.caller, s.attempt, s.signed_in_at, s.settled_at IS NOT NULL, s.lease_until, s.session_id, s.new_account,
            s.real_user_status, s.refresh, s.refresh_error, s.code_sealed, s.code_due_at, s.device,
            o.session_id, o.created_at, o.signed_in_at, o.expires_at, o.closed_at, n.given, n.family, n.captured_at,
            t.client_id, t.sealed, t.key_name, t.obtained_at, t.due_at,
            (
                SELECT string_agg(concat_ws(' ', h.facet, h.from_state, h.to_state, h.event_time), ', ' ORDER BY h.change_id)
                FROM siwa.account_changes AS h WHERE h.account_id = a.account_id
            )
        )
        FROM siwa.sign_ins AS s
        JOIN siwa.accounts AS a USING (account_id)
        JOIN siwa.consents AS c USING (account_id, app_id)
        LEFT JOIN siwa.account_sessions AS o ON o.session_id = s.session_id
        LEFT JOIN siwa.kept_names AS n ON n.account_id = a.account_id
        LEFT JOIN siwa.apple_tokens AS t ON t.account_id = a.account_id
        ORDER BY s.sign_in_id
        """

    @Test("Together, a reservation is left to the function that judges one alone if anything speaks against it.")
    func leftReservations() async throws {
        try await Store.with { store in
            try await store.signInWhole("used", of: "p", session: "taken")
            try await store.signIn("revoked", at: .at(0))
            try await store.record(
                .sample("consent-revoked", sub: "revoked", at: .at(5), id: "r"),
                .sample("account-delete", sub: "deleted", at: .at(5), id: "d")
            )
            let batch: [NewSignIn] = [
                .sample("fine", of: "fine"), .sample("used", of: "q"), .sample("nonce", of: "q", nonce: "used"),
                .sample("session", of: "q", session: "taken"), .sample("revoked", of: "revoked", at: .at(5)),
                .sample("deleted", of: "deleted", at: .at(9)),
                .sample("client", of: "q", client: "com.example.unknown"),
                .sample("twice", of: "q"), .sample("twice", of: "q"), .sample("again", of: "revoked", at: .at(6)),
                .sample("code", of: nil),
            ]
            let isReserved = try await store.reserveTogether(batch).map { $0 != nil }
            #expect(isReserved == [true, false, false, false, false, false, false, true, false, true, true])
            #expect(try await store.count("sign_ins") == 1 + 4)
        }
    }

    @Test("Together, a device is stored, and a reservation lasts as long as one alone.")
    func reservation() async throws {
        try await Store.with { store in
            let device = SignInDevice(platform: "ios", model: nil, label: "Maria's iPhone")
            let new = NewSignIn.sample("a", code: "c", attempt: "t", session: "s", device: device)
            _ = try await store.reserveTogether([new, .sample("b")])
            let rows = """
                SELECT concat_ws(
                    ' ', client_id, app_id, flow, caller, session_id, device,
                    code_digest IS NOT NULL, attempt IS NOT NULL, lease_until - received_at BETWEEN '14.9 s' AND '15.1 s'
                )
                FROM siwa.sign_ins ORDER BY 1
                """
            let expected = [
                "com.example.one com.example.one native backend f f t",
                #"com.example.one com.example.one native backend s {"label": "Maria's iPhone", "platform": "ios"} t t t"#,
            ]
            #expect(try await store.texts(rows) == expected)
            #expect(try await store.reserve(new) == .refused(.inProgress))
        }
    }

    /// What the function for a single sign-in has to decide.
    enum Unusual: String, CaseIterable {
        case revokedBefore, revokedSince, deletedSince, ahead, mailState, sessionTaken, expired, settled, takenOver,
            personLocked, consentLocked, clientRemoved, longAddress, longSubject
    }

    @Test("Together, an unusual sign-in is left unchanged, and the others are settled.", arguments: Unusual.allCases)
    func leftSettlements(unusual: Unusual) async throws {
        try await Store.with { store in
            try await store.signInWhole("before", of: "p", at: .at(-10))
            if unusual == .mailState {
                try await store.record(.sample("email-disabled", sub: "p", at: .at(-9), id: "e", email: "a@b"))
            }
            if unusual == .revokedBefore {
                try await store.record(.sample("consent-revoked", sub: "p", at: .at(-5), id: "r"))
            }
            let client = unusual == .clientRemoved ? "com.example.web" : "com.example.one"
            let new = NewSignIn.sample("a", client: client, session: "s")
            let id = try #require(try await store.reserve(new).signInID)
            var settlement = Settlement.sample(id, session: "s")
            let other = try #require(try await store.reserve(.sample("b", of: "q")).signInID)
            switch unusual {
            case .revokedSince: try await store.record(.sample("consent-revoked", sub: "p", at: .at(5), id: "r"))
            case .deletedSince: try await store.record(.sample("account-delete", sub: "p", at: .at(5), id: "d"))
            case .ahead: settlement.signedInAt = .now() + .seconds(3_600)
            case .mailState: settlement.email = .init(address: "p@example.com", isPrivate: false)
            case .sessionTaken: try await store.openSession("s", of: "p", at: .at(-10))
            case .expired: settlement.session = .init(id: "s", createdAt: .at(0), expiresAt: .at(0))
            case .settled: _ = try await store.settle(settlement)
            case .takenOver:
                try await store.endLeases()
                _ = try await store.reserve(new)
            case .clientRemoved: try await store.run("DELETE FROM siwa.clients WHERE client_id = 'com.example.web'")
            case .longAddress:
                settlement.email = .init(address: String(repeating: "a", count: 1_025), isPrivate: true)
            case .longSubject: settlement.subject = Subject(String(repeating: "a", count: 1_025))
            case .revokedBefore, .personLocked, .consentLocked: break
            }
            let rows =
                "SELECT to_jsonb(s)::text FROM siwa.sign_ins AS s WHERE sign_in_id <> \(other) ORDER BY sign_in_id"
            let before = (try await store.texts(rows), try await store.count("account_sessions"))
            let settled: [SettledSignIn?]
            switch unusual {
            case .personLocked, .consentLocked:
                let table = unusual == .personLocked ? "accounts" : "consents"
                settled = try await store.database.withOpenTransaction { session throws(PostgresError) in
                    try session.execute(script: "SELECT FROM siwa.\(table) FOR NO KEY UPDATE")
                } _: {
                    try await store.settleTogether([settlement, .sample(other, of: "q")])
                }
            default: settled = try await store.settleTogether([settlement, .sample(other, of: "q")])
            }
            #expect(settled.map { $0 != nil } == [false, true])
            let after = (try await store.texts(rows), try await store.count("account_sessions"))
            #expect(before == after)
        }
    }

    @Test(
        "Also while the tables are empty, the plans find every row by a key, so that they stay fast when the tables grow."
    )
    func plans() async throws {
        try await Store.with { store in
            try await store.connection.transaction { transaction throws(PostgresError) in
                try SignIns.beginBatch(in: transaction)
                let statements = [
                    (PackageResources.reserve_sign_ins_sql, 13), (PackageResources.settle_sign_ins_sql, 22),
                ]
                for (sql, count) in statements {
                    try transaction.execute(script: "PREPARE batch AS \(String(decoding: sql, as: UTF8.self))")
                    let nulls = [String](repeating: "NULL", count: count).joined(separator: ", ")
                    let rows = try transaction.execute(once: "EXPLAIN (COSTS OFF) EXECUTE batch (\(nulls))")
                    let plan = try rows.decode { (line: String) in line }
                    #expect(!plan.contains { $0.contains("Seq Scan") }, "\(plan)")
                    let searches = plan.indices.filter { plan[$0].contains("Index") && plan[$0].contains("Scan using") }
                    #expect(
                        searches.count >= 4 && searches.allSatisfy { plan[$0 + 1].contains("Index Cond") },
                        "\(plan)"
                    )
                    try transaction.execute(script: "DEALLOCATE batch")
                }
            }
        }
    }

    @Test("Two first sign-ins of a person at the same time: the second batch fails as a whole, and can be repeated.")
    func twoFirst() async throws {
        try await Store.with { store in
            let one = try #require(try await store.reserve(.sample("a", session: "a")).signInID)
            let two = try #require(try await store.reserve(.sample("b", session: "b")).signInID)
            let other = try #require(try await store.reserve(.sample("c", of: "q", session: "c")).signInID)
            let batch = [Settlement.sample(other, of: "q", session: "c"), .sample(two, at: .at(1), session: "b")]
            let attempt = try await store.database.withOpenTransaction { session throws(PostgresError) in
                _ = try SignIns.settle([.sample(one, session: "a")], in: session)
            } _: {
                let attempt = Task { try await store.settleTogether(batch) }
                try await store.untilAnotherWaits()
                return attempt
            }
            let error = await #expect(throws: PostgresError.self) { try await attempt.value }
            #expect(error?.sqlState?.rawValue == "23505")
            #expect(try await store.texts("SELECT session_id FROM siwa.live_sessions") == ["a"])
            #expect(try await store.settleTogether(batch).map { $0?.isNewAccount } == [true, false])
        }
    }

    @Test("Together, a sign-in that is not reserved is left if anything speaks against it, and changes nothing.")
    func leftWhole() async throws {
        try await Store.with { store in
            try await store.signInWhole("used", of: "p", session: "taken")
            _ = try await store.reserve(.sample("reserved", of: "p"))
            try await store.signIn("revoked", at: .at(0))
            try await store.record(
                .sample("consent-revoked", sub: "revoked", at: .at(5), id: "r"),
                .sample("account-delete", sub: "deleted", at: .at(5), id: "d")
            )
            let requests: [NewSignIn] = [
                .sample("fine", of: "fine"), .sample("used", of: "a"), .sample("reserved", of: "b"),
                .sample("nonce", of: "c", nonce: "used"), .sample("session", of: "d", session: "taken"),
                .sample("revoked", of: "revoked", at: .at(5)), .sample("deleted", of: "deleted", at: .at(9)),
                .sample("client", of: "e", client: "com.example.unknown"),
            ]
            let settlements = requests.map { request in
                Settlement.sample(
                    0,
                    of: request.subject?.rawValue ?? "",
                    at: request.issuedAt ?? .at(0),
                    session: request.sessionID
                )
            }
            let people = try await store.count("accounts")
            let isSettled = try await store.settleTogether(settlements, unreserved: requests).map { $0 != nil }
            #expect(isSettled == [true, false, false, false, false, false, false, false])
            #expect(try await store.count("sign_ins") == 2 + 1)
            #expect(try await store.count("accounts") == people + 1)
            #expect(try await store.count("account_sessions") == 1)
        }
    }

    @Test("The same new sign-in in two batches: the second one fails as a whole, and opens no session.")
    func usedDuringBatch() async throws {
        try await Store.with { store in
            let new = NewSignIn.sample("a", session: "a")
            let settlement = Settlement.sample(0, session: "a")
            let attempt = try await store.database.withOpenTransaction { session throws(PostgresError) in
                _ = try SignIns.reserve(new, in: session)
            } _: {
                let attempt = Task { try await store.settleTogether([settlement], unreserved: [new]) }
                try await store.untilAnotherWaits()
                return attempt
            }
            let error = await #expect(throws: PostgresError.self) { try await attempt.value }
            #expect(error?.sqlState == .uniqueViolation)
            #expect(try await store.count("account_sessions") == 0)
            #expect(try await store.count("accounts") == 0)
        }
    }

    @Test(
        "A revocation or deletion before its person is locked lets the batch open no session, also for an older sign-in.",
        arguments: ["consent-revoked", "account-delete"]
    )
    func endedDuringBatch(type: String) async throws {
        try await Store.with { store in
            try await store.signInWhole("first", of: "p", at: .at(-20))
            try await store.signInWhole("second", of: "q", at: .at(10))
            // Holds the batch at the person p, who has an address, before it reads the rows of q.
            try await store.run(
                """
                CREATE TABLE public.gate ();
                CREATE OR REPLACE FUNCTION siwa.observation_wins(
                    at timestamptz, email text, is_private boolean,
                    known_at timestamptz, known_email text, known_is_private boolean
                ) RETURNS boolean LANGUAGE plpgsql VOLATILE SECURITY DEFINER AS $$
                    BEGIN IF email = 'x@privaterelay.appleid.com' THEN LOCK TABLE public.gate; END IF; RETURN true; END
                $$;
                """
            )
            let requests: [NewSignIn] = [.sample("a", of: "p"), .sample("b", of: "q", session: "b")]
            let settlements: [Settlement] = [
                .sample(0, of: "p", email: Self.email), .sample(0, of: "q", session: "b"),
            ]
            let attempt = try await store.database.withOpenTransaction { session throws(PostgresError) in
                try session.execute(script: "LOCK TABLE public.gate")
            } _: {
                let attempt = Task { try await store.settleTogether(settlements, unreserved: requests) }
                try await store.untilAnotherWaits()
                let notification = ReceivedNotification.sample(type, sub: "q", at: .at(20), id: "r")
                let writer = try await Store.writer(store.database)
                try await writer.withSession { session throws(PostgresError) in
                    _ = try Notifications.record([notification], source: .endpoint, in: session)
                }
                await writer.close()
                return attempt
            }
            #expect(try await attempt.value.map { $0 != nil } == [true, false])
            #expect(try await store.count("account_sessions") == 0)
        }
    }

    @Test("A sign-in that another process takes over while its batch waits fails the batch, and opens no session.")
    func takenOverDuringBatch() async throws {
        try await Store.with { store in
            let new = NewSignIn.sample("a", session: "s")
            let slow = try #require(try await store.reserve(new).signInID)
            try await store.endLeases()
            let attempt = try await store.database.withOpenTransaction { session throws(PostgresError) in
                _ = try SignIns.reserve(new, in: session)
            } _: {
                let attempt = Task { try await store.settleTogether([.sample(slow, session: "s")]) }
                try await store.untilAnotherWaits()
                return attempt
            }
            let error = await #expect(throws: PostgresError.self) { try await attempt.value }
            #expect(error?.sqlState == .serializationFailure)
            #expect(try await store.count("account_sessions") == 0)
            #expect(try await store.count("accounts") == 0)
        }
    }
}

/// With the rights of the daemon.
extension Store {
    func reserveTogether(_ batch: [NewSignIn]) async throws -> [Int64?] {
        try await connection.transaction { transaction throws(PostgresError) in
            try transaction.execute(script: "SET LOCAL ROLE siwad_daemon")
            try SignIns.beginBatch(in: transaction)
            return try SignIns.reserve(batch, in: transaction)
        }
    }

    /// Settles and stores the tokens, as the flow of sign-ins does.
    ///
    /// - Parameter waits: until a lock is granted, so that a test decides what happens before.
    func settleTogether(
        _ batch: [Settlement],
        unreserved: [NewSignIn?] = [],
        waits: Bool = true
    ) async throws -> [SettledSignIn?] {
        try await connection.transaction { transaction throws(PostgresError) in
            try transaction.execute(script: "SET LOCAL ROLE siwad_daemon")
            try SignIns.beginBatch(in: transaction)
            if waits { try transaction.execute(script: "SET LOCAL lock_timeout = 0") }
            return try Self.settleTogether(batch, unreserved: unreserved, in: transaction)
        }
    }

    static func settleTogether(
        _ batch: [Settlement],
        unreserved: [NewSignIn?] = [],
        in transaction: borrowing Session
    ) throws(PostgresError) -> [SettledSignIn?] {
        let settled = try SignIns.settle(batch, unreserved: unreserved, in: transaction)
        let tokens = zip(batch, settled).compactMap { settlement, signIn in
            settlement.refresh == .stored ? signIn.map { (token: token, signIn: $0) } : nil
        }
        try RefreshTokens.store(tokens, in: transaction)
        return settled
    }
}
