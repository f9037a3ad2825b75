import AccountStore
import JOSE
import Postgres
import Testing
import Webhooks

extension DaemonFixture {
    static let sealingKey = Result { try SealingKeys.newLine(name: "test") }
    private static let sharedSecret = Result { try WebhookSecret.newHMAC() }

    /// Settings of daemons that deliver to receivers of this machine.
    static func delivering(_ settings: [String: String] = [:]) throws -> [String: String] {
        let usual = ["SIWAD_SEALING_KEYS": try sealingKey.get(), "SIWAD_DELIVERY_ALLOW": "127.0.0.0/8"]
        return usual.merging(settings) { _, given in given }
    }

    /// The secret of all endpoints.
    static var secret: WebhookSecret { get throws { try sharedSecret.get() } }

    /// Adds an endpoint that gets revocations and sign-ins.
    @discardableResult
    func addEndpoint(
        _ name: String,
        _ url: String,
        _ change: (inout EndpointConfiguration) -> Void = { _ in }
    ) async throws -> Int32 {
        var configuration = EndpointConfiguration(name: name, url: url)
        configuration.types = ["siwa.consent.revoked"]
        configuration.retries = [.milliseconds(50), .milliseconds(100)]
        change(&configuration)
        let keys = try SealingKeys(parsing: try Self.sealingKey.get())
        let (secret, chosen) = (try Self.secret, configuration)
        return try await connection.transaction { session throws(PostgresError) in
            let id = try Endpoints.insert(chosen, in: session).id
            let row = SealedSecret(endpoint: id, purpose: .hmac, generation: 1)
            guard let sealed = try? row.seal(secret.text, with: keys) else {
                throw PostgresError(.usage, "the secret can't be sealed")
            }
            try EndpointSecrets.insert(
                .init(purpose: .hmac, generation: 1, sealed: sealed, keyID: "test"),
                fingerprint: secret.fingerprint,
                of: id,
                in: session
            )
            return id
        }
    }

    /// Adds people `p0`, `p1` …, and revocations of them in turn.
    func revoke(_ count: Int, people: Int = 1_000) async throws {
        try await run(
            """
            SELECT count(siwa.record_sign_in('com.example.one', 'p' || n)) FROM generate_series(0, \(min(count, people) - 1)) AS n;
            INSERT INTO siwa.account_changes (account_id, app_id, facet, from_state, to_state, event_time, sessions_ended)
            SELECT a.account_id, 'com.example.one', 'consent', 'authorized', 'revoked', now(), 0
            FROM generate_series(0, \(count - 1)) AS n JOIN siwa.accounts AS a ON a.sub = 'p' || n % \(people)
            ORDER BY n;
            """
        )
    }

    /// The number of deliveries by `endpoint status`.
    func deliveries() async throws -> [String] {
        try await texts(
            """
            SELECT e.name || ' ' || d.status || ' ' || count(*)
            FROM siwa.deliveries AS d JOIN siwa.endpoints AS e USING (endpoint_id)
            GROUP BY e.name, d.status ORDER BY 1
            """
        )
    }

    /// Ends the claims of daemons that were killed, which would last for half a minute otherwise. PostgreSQL must have
    /// noticed the end of the daemons: it may still execute their last statements, which lock the same rows in another
    /// order.
    func expireClaims() async throws {
        try await eventually("the daemons' connections to end") {
            try await texts(
                "SELECT '' FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'siwad'"
            ).isEmpty
        }
        try await run("UPDATE siwa.deliveries SET claimed_until = now() WHERE claim IS NOT NULL")
    }

    /// Waits until ``deliveries()`` are these.
    func untilDelivered(_ expected: String..., within limit: Duration = .seconds(60)) async throws {
        // Counting a hundred thousand again and again would leave the daemons no time.
        let isEnd = expected.allSatisfy { !$0.contains(" pending ") && !$0.contains(" retry ") }
        let waiting = "SELECT status FROM siwa.deliveries WHERE status IN ('pending', 'retry') LIMIT 1"
        do {
            try await eventually("the deliveries", within: limit) {
                if isEnd, try await !texts(waiting).isEmpty { return false }
                return try await deliveries() == expected
            }
        } catch {
            let found = try await deliveries()
            Issue.record("\(found) instead of \(expected)")
            throw error
        }
    }
}
