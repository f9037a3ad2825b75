import AccountStore
import Basics
import Postgres
import StoreTestSupport
import TestSupport
import Testing

@Suite("The attempts of deliveries")
struct DeliveryAttemptTests {
    /// Claims the only delivery and fails with it.
    private func fail(
        _ store: Store,
        _ endpoint: Int32,
        _ outcome: SettledDelivery.Outcome,
        _ reason: DeliveryReason,
        _ words: String
    ) async throws {
        let settled = try await store.connection.withSession { session throws(PostgresError) in
            let claimed = try DeliveryQueue.claim(
                of: endpoint,
                capacity: 1,
                retries: 1,
                probe: "oldest",
                in: session
            )
            let ended = claimed.map { delivery in
                SettledDelivery(
                    position: delivery.change.position,
                    claim: delivery.claim,
                    outcome: outcome,
                    failure: .init(reason, words),
                    httpStatus: 500,
                    startedAt: .now(),
                    duration: .milliseconds(7)
                )
            }
            return try DeliveryQueue.settle(ended, of: endpoint, in: session)
        }
        #expect(settled == 1)
    }

    @Test("Every attempt that counted is recorded, of the others the newest 20, and no request for a pause.")
    func recorded() async throws {
        try await Store.with { store in
            let endpoint = try await store.connection.transaction { session throws(PostgresError) in
                var configuration = EndpointConfiguration(name: "shop", url: "https://shop.example.com/")
                configuration.types = ["siwa.consent.authorized"]
                return try Endpoints.insert(configuration, in: session).id
            }
            try await store.signIn("p", at: Store.now)
            _ = try await store.connection.withSession(Publication.publish)
            let rows = """
                SELECT concat_ws(' ', attempt, counted, reason, detail) FROM siwa.delivery_attempts ORDER BY attempt_id
                """

            for number in 1...2 { try await fail(store, endpoint, .retry(after: .zero), .failed, "counted \(number)") }
            var expected = (1...2).map { "\($0) t failed counted \($0)" }
            #expect(try await store.texts(rows) == expected)

            for _ in 1...5 { try await fail(store, endpoint, .postponed, .throttled, "answered 429") }
            #expect(try await store.texts(rows) == expected)
            let delivery = "SELECT concat_ws(' ', status, attempts, reason) FROM siwa.deliveries"
            #expect(try await store.texts(delivery) == ["retry 2 throttled"])

            for number in 1...25 { try await fail(store, endpoint, .postponed, .unreachable, "probe \(number)") }
            expected += (6...25).map { "3 f unreachable probe \($0)" }
            #expect(try await store.texts(rows) == expected)

            try await fail(store, endpoint, .dead, .failed, "counted 3")
            #expect(try await store.texts(rows) == expected + ["3 t failed counted 3"])
            #expect(try await store.texts(delivery) == ["dead 3 failed"])
        }
    }
}
