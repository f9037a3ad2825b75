import AccountStore
import JOSE
import Postgres
import Webhooks

/// The endpoint `demo` of `siwad dev`.
enum DemonstrationEndpoint {
    static let name = "demo"

    /// Adds it, or gives it the receiver's URL and secret of this run.
    static func register(
        _ url: String,
        secret: WebhookSecret,
        keys: SealingKeys,
        in pool: ConnectionPool
    ) async throws {
        var configuration = EndpointConfiguration(name: name, url: url)
        // Short, so that the demonstration can show a retry.
        configuration.retries = [.milliseconds(200)] + EndpointConfiguration.usualRetries
        let wanted = configuration
        let (id, generation) = try await pool.transaction { session throws(PostgresError) in
            let id: Int32
            if let known = try Endpoints.all(in: session).first(where: { $0.endpoint.name == name })?.endpoint {
                id = known.id
                try Endpoints.update(id, to: wanted, in: session)
                if known.status != .paused { try Endpoints.resume(id, in: session) }
            } else {
                id = try Endpoints.insert(wanted, in: session).id
            }
            return (id, try EndpointSecrets.nextGeneration(of: id, .hmac, in: session))
        }
        let row = SealedSecret(endpoint: id, purpose: .hmac, generation: generation)
        let sealed = try row.seal(secret.text, with: keys)
        try await pool.transaction { session throws(PostgresError) in
            try EndpointSecrets.insert(
                SealedEndpointSecret(purpose: .hmac, generation: generation, sealed: sealed, keyID: keys.first),
                fingerprint: secret.fingerprint,
                of: id,
                in: session
            )
        }
    }
}
