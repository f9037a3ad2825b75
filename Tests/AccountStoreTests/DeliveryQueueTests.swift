import AccountStore
import AppleTokens
import Basics
import Postgres
import StoreTestSupport
import TestSupport
import Testing

@Suite("The queue of deliveries")
struct DeliveryQueueTests {
    /// Adds an endpoint and `count` changes that wait for it, of `people` in turn.
    private func prepare(
        _ store: Store,
        _ count: Int,
        people: Int = 1_000_000,
        ordering: EndpointConfiguration.Ordering = .attempt,
        timeout: Duration = .seconds(15)
    ) async throws -> Int32 {
        var configuration = EndpointConfiguration(name: "shop", url: "https://shop.example.com/")
        configuration.types = ["siwa.consent.revoked"]
        (configuration.ordering, configuration.timeout) = (ordering, timeout)
        let wanted = configuration
        let id = try await store.connection.transaction { session throws(PostgresError) in
            try Endpoints.insert(wanted, in: session).id
        }
        try await add(store, count, people: people)
        return id
    }

    private func add(_ store: Store, _ count: Int, people: Int = 1_000_000) async throws {
        try await store.run(
            """
            SELECT count(siwa.record_sign_in('com.example.one', 'p' || n)) FROM generate_series(0, \(min(count, people, 500) - 1)) AS n;
            INSERT INTO siwa.account_changes (account_id, app_id, facet, from_state, to_state, event_time)
            SELECT a.account_id, 'com.example.one', 'consent', 'authorized', 'revoked', now()
            FROM generate_series(0, \(count - 1)) AS n JOIN siwa.accounts AS a ON a.sub = 'p' || n % \(min(people, 500))
            ORDER BY n
            """
        )
        _ = try await store.connection.withSession(Publication.publish)
    }

    @Test("A daemon that doesn't know yet that an operator resumed an endpoint can't store its failures.")
    func staleHealth() async throws {
        try await Store.with { store in
            let id = try await prepare(store, 1)
            func endpoint() async throws -> Endpoint {
                try await store.connection.withSession { session throws(PostgresError) in
                    try Endpoints.all(in: session)[0].endpoint
                }
            }
            func keep(_ endpoint: Endpoint) async throws -> [String] {
                try await store.connection.withSession { session throws(PostgresError) in
                    var state = EndpointState()
                    (state.failingSince, state.openUntil, state.probeDelay) = (Store.now, Store.now, .seconds(5))
                    try DeliveryQueue.store(state, of: endpoint, in: session)
                }
                return try await store.texts("SELECT (open_until IS NOT NULL)::text FROM siwa.endpoint_states")
            }
            let before = try await endpoint()
            #expect(try await keep(before) == ["true"])
            try await store.connection.transaction { session throws(PostgresError) in
                try Endpoints.resume(id, in: session)
            }
            #expect(try await keep(before) == ["false"])
            #expect(try await keep(endpoint()) == ["true"])
        }
    }

    private func claim(
        _ store: Store,
        _ endpoint: Int32,
        _ capacity: Int,
        retries: Int = 100,
        probe: String? = nil
    ) async throws -> [ClaimedDelivery] {
        try await store.connection.withSession { session throws(PostgresError) in
            try DeliveryQueue.claim(of: endpoint, capacity: capacity, retries: retries, probe: probe, in: session)
        }
    }

    private func settle(
        _ store: Store,
        _ endpoint: Int32,
        _ claimed: [ClaimedDelivery],
        _ outcome: SettledDelivery.Outcome
    ) async throws -> Int64 {
        let isFailure = outcome != .delivered
        let ended = claimed.map { delivery in
            SettledDelivery(
                position: delivery.change.position,
                claim: delivery.claim,
                outcome: outcome,
                failure: isFailure ? .init(.failed, "answered 500") : nil,
                httpStatus: isFailure ? 500 : 200,
                startedAt: .now(),
                duration: .milliseconds(7)
            )
        }
        return try await store.connection.withSession { session throws(PostgresError) in
            try DeliveryQueue.settle(ended, of: endpoint, in: session)
        }
    }

    private func people(_ claimed: [ClaimedDelivery]) -> [String] { claimed.map(\.change.subject.rawValue) }

    @Test("Each delivery is claimed once, in the order of the positions, with its change.")
    func claims() async throws {
        try await Store.with { store in
            let endpoint = try await prepare(store, 10)
            let first = try await claim(store, endpoint, 4)
            let second = try await claim(store, endpoint, 100)
            #expect(people(first + second) == (0..<10).map { "p\($0)" })
            #expect(first.allSatisfy { $0.attempts == 1 && !$0.isRetry && $0.change.type == "siwa.consent.revoked" })
            #expect(try await claim(store, endpoint, 100).isEmpty)
            #expect(try await settle(store, endpoint, first, .delivered) == 4)
            #expect(try await settle(store, endpoint, first, .dead) == 0, "settled already")
        }
    }

    @Test("An endpoint of some apps gets their changes, and the team's changes that any app of the team reported.")
    func wanted() async throws {
        try await Store.with { store in
            let filters: [(name: String, apps: [String]?, types: [String]?)] = [
                ("all", nil, nil), ("deletions", ["com.example.two"], ["siwa.account.deleted"]),
                ("other", ["com.example.other"], nil), ("two", ["com.example.two"], nil),
            ]
            for filter in filters {
                try await store.connection.transaction { session throws(PostgresError) in
                    var configuration = EndpointConfiguration(name: filter.name, url: "https://shop.example.com/")
                    (configuration.apps, configuration.types) = (filter.apps, filter.types)
                    _ = try Endpoints.insert(configuration, in: session)
                }
            }
            try await store.signIn("p", at: Store.now)
            for (number, type) in ["consent-revoked", "email-disabled", "account-deleted"].enumerated() {
                let time = Store.now + .seconds(Int64(number) + 1)
                let email = type == "email-disabled" ? "a@b.example" : nil
                try await store.record(.sample(type, sub: "p", at: time, id: type, email: email))
            }
            _ = try await store.connection.withSession(Publication.publish)
            let deliveries = try await store.texts(
                """
                SELECT e.name || ' ' || c.type
                FROM siwa.deliveries AS d JOIN siwa.endpoints AS e USING (endpoint_id) JOIN siwa.changes AS c USING (position)
                ORDER BY e.name, position
                """
            )
            #expect(
                deliveries == [
                    "all siwa.consent.revoked", "all siwa.email.forwarding_disabled", "all siwa.account.deleted",
                    "deletions siwa.account.deleted", "two siwa.email.forwarding_disabled", "two siwa.account.deleted",
                ]
            )
        }
    }

    @Test("A claim is valid for the timeout of its endpoint and ten seconds more.", arguments: [1, 60])
    func claimLength(timeout: Int) async throws {
        try await Store.with { store in
            let endpoint = try await prepare(store, 1, timeout: .seconds(timeout))
            let before = try await store.texts("SELECT clock_timestamp()::text")[0]
            #expect(try await claim(store, endpoint, 1).count == 1)
            let beganInBetween = try await store.texts(
                """
                SELECT (claimed_until - interval '\(timeout + 10) s' BETWEEN '\(before)' AND clock_timestamp())::text
                FROM siwa.deliveries
                """
            )
            #expect(beganInBetween == ["true"])
            #expect(DeliveryQueue.claimGrace == .seconds(10), "as the daemons compute its end")
        }
    }

    @Test("Only an endpoint that includes addresses gets one, and none once it is erased.")
    func addresses() async throws {
        try await Store.with { store in
            var added: [Int32] = []
            for (name, include) in [("without", []), ("with", ["email"])] as [(String, [String])] {
                let id = try await store.connection.transaction { session throws(PostgresError) in
                    var configuration = EndpointConfiguration(name: name, url: "https://shop.example.com/")
                    configuration.types = ["siwa.email.forwarding_disabled"]
                    configuration.include = include
                    return try Endpoints.insert(configuration, in: session).id
                }
                added.append(id)
            }
            let endpoints = added
            func emails() async throws -> [[String?]] {
                var emails: [[String?]] = []
                for endpoint in endpoints { emails.append(try await claim(store, endpoint, 10).map(\.email)) }
                return emails
            }
            try await store.signIn("p", at: .at(-90 * 86_400), email: "first@b.example", emailIsPrivate: true)
            try await store.record(
                .sample("email-disabled", sub: "p", at: .at(-3_600), id: "off", email: "a@b.example")
            )
            _ = try await store.connection.withSession(Publication.publish)
            #expect(try await emails() == [[nil], ["a@b.example"]])
            try await store.run("UPDATE siwa.deliveries SET claimed_until = now() - interval '1 s'")
            // Erasure is due, because the account was deleted 31 days ago.
            try await store.connection.withSession { session throws(PostgresError) in
                _ = try Notifications.ensurePartitions(from: .at(-40 * 86_400), through: .at(0), in: session)
            }
            try await store.record(.sample("account-delete", sub: "p", at: .at(-31 * 86_400), id: "gone"))
            #expect(try await store.maintain(.erasure).accountsErased == 1)
            #expect(try await emails() == [[nil], [nil]])
        }
    }

    @Test("After its claim has expired, a delivery belongs to the next claim, and the late outcome changes nothing.")
    func expired() async throws {
        try await Store.with { store in
            let endpoint = try await prepare(store, 1)
            let first = try await claim(store, endpoint, 1)
            try await store.run("UPDATE siwa.deliveries SET claimed_until = now() - interval '1 s'")
            let second = try await claim(store, endpoint, 1)
            #expect(second.map(\.attempts) == [2])
            #expect(try await settle(store, endpoint, first, .delivered) == 0)
            #expect(try await settle(store, endpoint, second, .retry(after: .seconds(60))) == 1)
            let row = "SELECT concat_ws(' ', status, attempts, claim, reason, http_status) FROM siwa.deliveries"
            #expect(try await store.texts(row) == ["retry 2 failed 500"])
            #expect(
                try await store.texts("SELECT concat_ws(' ', attempt, reason, detail) FROM siwa.delivery_attempts")
                    == ["2 failed answered 500"]
            )
        }
    }

    @Test("After the database's clock was ahead, neither fresh deliveries nor old claims wait for its time.")
    func clockAhead() async throws {
        try await Store.with { store in
            let endpoint = try await prepare(store, 2)
            try await store.run("UPDATE siwa.deliveries SET next_attempt_at = now() + interval '1 day'")
            #expect(try await claim(store, endpoint, 1).count == 1)
            #expect(try await claim(store, endpoint, 2).count == 1)
            #expect(try await claim(store, endpoint, 2).isEmpty)
            try await store.run("UPDATE siwa.deliveries SET claimed_until = now() + interval '1 day'")
            #expect(try await claim(store, endpoint, 2).count == 2)
        }
    }

    @Test(
        "A person's later changes wait for the first attempt, for the end, or for nothing.",
        arguments: [EndpointConfiguration.Ordering.attempt, .person, .none]
    )
    func ordering(_ ordering: EndpointConfiguration.Ordering) async throws {
        try await Store.with { store in
            let endpoint = try await prepare(store, 6, people: 2, ordering: ordering)
            let first = try await claim(store, endpoint, 100)
            #expect(people(first) == (ordering == .none ? ["p0", "p1", "p0", "p1", "p0", "p1"] : ["p0", "p1"]))
            #expect(try await claim(store, endpoint, 100).isEmpty)
            #expect(try await settle(store, endpoint, [first[0]], .retry(after: .seconds(60))) == 1)
            #expect(try await settle(store, endpoint, [first[1]], .delivered) == 1)
            let expected =
                switch ordering {
                case .attempt: ["p0", "p1"]
                case .person: ["p1"]
                case .none: [String]()
                }
            #expect(try await people(claim(store, endpoint, 100)) == expected)
        }
    }

    @Test("Of the retries that are due, no more than allowed are claimed, and fresh changes fill the rest.")
    func retries() async throws {
        try await Store.with { store in
            let endpoint = try await prepare(store, 20)
            let failed = try await claim(store, endpoint, 10)
            #expect(try await settle(store, endpoint, failed, .retry(after: .zero)) == 10)
            let mixed = try await claim(store, endpoint, 8, retries: 2)
            #expect(mixed.count == 8)
            #expect(mixed.count(where: \.isRetry) == 2)
            #expect(try await claim(store, endpoint, 1, retries: 2).map(\.isRetry) == [true])
        }
    }

    @Test(
        "A postponed attempt does not count, and a probe is the oldest delivery, or the newest with nothing before it."
    )
    func probes() async throws {
        try await Store.with { store in
            let endpoint = try await prepare(store, 6, people: 3)
            let newest = try await claim(store, endpoint, 1, probe: "newest")
            #expect(people(newest) == ["p2"])
            #expect(try await settle(store, endpoint, newest, .postponed) == 1)
            let oldest = try await claim(store, endpoint, 1, probe: "oldest")
            #expect(people(oldest) == ["p0"])
            #expect(try await settle(store, endpoint, oldest, .retry(after: .seconds(60))) == 1)
            #expect(try await claim(store, endpoint, 1, probe: "oldest").map(\.isRetry) == [true], "before it is due")
            #expect(try await store.texts("SELECT max(attempts)::text FROM siwa.deliveries") == ["2"])
        }
    }

    @Test("A probe of a retry that is not due leaves it due when it was, and a fresh change stays due.")
    func postponedRetry() async throws {
        try await Store.with { store in
            let endpoint = try await prepare(store, 2)
            let first = try await claim(store, endpoint, 1)
            #expect(try await settle(store, endpoint, first, .retry(after: .seconds(3_600))) == 1)
            for _ in 0..<2 {
                let probe = try await claim(store, endpoint, 1, probe: "oldest")
                #expect(people(probe) == ["p0"])
                #expect(try await settle(store, endpoint, probe, .postponed) == 1)
                let fresh = try await claim(store, endpoint, 2)
                #expect(people(fresh) == ["p1"])
                #expect(try await settle(store, endpoint, fresh, .postponed) == 1)
            }
            let rows = """
                SELECT concat_ws(' ', status, attempts, next_attempt_at > now() + interval '59 min')
                FROM siwa.deliveries ORDER BY position
                """
            #expect(try await store.texts(rows) == ["retry 1 t", "pending 0 f"])
        }
    }

    @Test("Nothing is claimed for an endpoint that is paused.")
    func paused() async throws {
        try await Store.with { store in
            let endpoint = try await prepare(store, 3)
            try await store.run("UPDATE siwa.endpoints SET status = 'paused', status_reason = 'operator'")
            #expect(try await claim(store, endpoint, 10).isEmpty)
        }
    }

    @Test("Claims and outcomes read only what is due, by the indexes, in empty, unanalysed and large tables.")
    func plans() async throws {
        try await Store.with { store in
            let endpoint = try await prepare(store, 1)
            for preparation in ["none", "20000", "analyze", "delivered", "retries that are not due"] {
                switch preparation {
                case "20000": try await add(store, 20_000)
                case "analyze": try await store.run("ANALYZE")
                case "delivered":
                    try await store.run(
                        """
                        UPDATE siwa.deliveries SET status = 'delivered', next_attempt_at = NULL, resolved_at = now(), claim = NULL,
                            claimed_until = NULL
                        WHERE position % 100 <> 0
                        """
                    )
                    // As PostgreSQL does by itself, so that the index has no entries of former versions.
                    try await store.run("VACUUM siwa.deliveries")
                case "retries that are not due":
                    try await store.run(
                        """
                        INSERT INTO siwa.deliveries (
                            endpoint_id, position, account_id, status, next_attempt_at, reason, first_failed_at
                        )
                        SELECT \(endpoint), 100000 + n, n, 'retry', now() + interval '1 hour', 'refused', now()
                        FROM generate_series(1, 20000) AS n
                        """
                    )
                default: break
                }
                let (scans, rows) = try await store.connection.transaction { session throws(PostgresError) in
                    let before = try Self.reads(session)
                    let claimed = try DeliveryQueue.claim(of: endpoint, capacity: 8, retries: 2, in: session)
                    let ended = claimed.map {
                        SettledDelivery(
                            position: $0.change.position,
                            claim: $0.claim,
                            outcome: .delivered,
                            failure: nil,
                            httpStatus: 200,
                            startedAt: .now(),
                            duration: .zero
                        )
                    }
                    try DeliveryQueue.settle(ended, of: endpoint, in: session)
                    let after = try Self.reads(session)
                    return (after.0 - before.0, after.1 - before.1)
                }
                #expect(scans == 0, "\(preparation)")
                #expect(rows < 500, "\(preparation)")
            }
        }
    }

    /// The sequential scans, and the index entries that were read.
    private static func reads(_ session: borrowing Session) throws(PostgresError) -> (Int64, Int64) {
        let tables = "('deliveries', 'delivery_attempts', 'change_log', 'account_changes', 'accounts')"
        let rows = try session.execute(
            once: """
                SELECT
                    (SELECT sum(seq_scan)::bigint FROM pg_stat_xact_user_tables WHERE relname IN \(tables)),
                    (
                        SELECT sum(pg_stat_get_xact_tuples_returned(i.indexrelid))::bigint
                        FROM pg_index AS i JOIN pg_class AS c ON c.oid = i.indrelid WHERE c.relname IN \(tables)
                    )
                """
        )
        return (try rows.int64(0, 0), try rows.int64(0, 1))
    }
}
