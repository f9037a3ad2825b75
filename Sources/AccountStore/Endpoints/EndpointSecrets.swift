package import Basics
package import Postgres

/// A row of `siwa.endpoint_secrets`.
package struct SealedEndpointSecret: Sendable, Equatable {
    package enum Purpose: String, PostgresValue, Sendable, CaseIterable {
        case hmac
        case ed25519
        case authorization
        case pollToken = "poll-token"
    }

    package let purpose: Purpose
    /// Counts from 1; the latest one signs first.
    package let generation: Int32
    /// A compact JWE; for a poll token its SHA-256.
    package let sealed: [UInt8]
    /// The key of `SIWAD_SEALING_KEYS`; nil for a poll token.
    package let keyID: String?
    /// When it stops being used; nil for the latest generation.
    package let expiresAt: WallTime?

    package init(purpose: Purpose, generation: Int32, sealed: [UInt8], keyID: String?, expiresAt: WallTime? = nil) {
        self.purpose = purpose
        self.generation = generation
        self.sealed = sealed
        self.keyID = keyID
        self.expiresAt = expiresAt
    }
}

/// Reads and changes the sealed secrets of endpoints. `siwad_reader` has no right to their table.
package enum EndpointSecrets {
    /// The secrets that are in use, the latest generation of each purpose first.
    package static func live(
        of endpoint: Int32,
        in session: borrowing Session
    ) throws(PostgresError) -> [SealedEndpointSecret] {
        try session.execute(live, endpoint).decode {
            SealedEndpointSecret(purpose: $0, generation: $1, sealed: $2, keyID: $3, expiresAt: $4)
        }
    }

    /// The generation that the next secret of a purpose has.
    package static func nextGeneration(
        of endpoint: Int32,
        _ purpose: SealedEndpointSecret.Purpose,
        in transaction: borrowing Session
    ) throws(PostgresError) -> Int32 {
        try transaction.execute(
            once: """
                SELECT coalesce(max(generation), 0) + 1 FROM siwa.endpoint_secrets WHERE endpoint_id = $1 AND purpose = $2
                """,
            endpoint,
            purpose
        ).value(0, 0)
    }

    /// Stores a secret, and lets the earlier generations of its purpose end after `overlap` at the latest.
    package static func insert(
        _ secret: SealedEndpointSecret,
        fingerprint: String,
        of endpoint: Int32,
        overlap: Duration = .zero,
        in transaction: borrowing Session
    ) throws(PostgresError) {
        _ = try transaction.execute(
            once: """
                UPDATE siwa.endpoint_secrets
                SET expires_at = least(coalesce(expires_at, 'infinity'), clock_timestamp() + $3)
                WHERE endpoint_id = $1 AND purpose = $2 AND (expires_at IS NULL OR expires_at > clock_timestamp() + $3)
                """,
            endpoint,
            secret.purpose,
            overlap
        )
        _ = try transaction.execute(
            once: """
                INSERT INTO siwa.endpoint_secrets (endpoint_id, purpose, generation, sealed, key_id, fingerprint)
                VALUES ($1, $2, $3, $4, $5, $6)
                """,
            endpoint,
            secret.purpose,
            secret.generation,
            secret.sealed,
            secret.keyID,
            fingerprint
        )
    }

    /// The fingerprints of the latest secrets that sign, by endpoint, HMAC before Ed25519; nil if the role may not read them.
    package static func fingerprints(in session: borrowing Session) throws(PostgresError) -> [Int32: String]? {
        let mayRead = "SELECT has_table_privilege('siwa.endpoint_secrets', 'SELECT')"
        guard try session.execute(once: mayRead).bool(0, 0) else { return nil }
        let rows = try session.execute(
            once: """
                SELECT DISTINCT ON (s.endpoint_id) s.endpoint_id, s.fingerprint
                FROM siwa.endpoint_secrets AS s JOIN siwa.endpoints AS e ON e.endpoint_id = s.endpoint_id
                WHERE s.purpose IN ('hmac', 'ed25519') AND s.expires_at IS NULL
                    -- A secret stays when the endpoint is changed to sign with the other kind only.
                    AND e.signature IN ('both', s.purpose)
                ORDER BY s.endpoint_id, s.purpose DESC
                """
        ).decode { (endpoint: Int32, fingerprint: String) in (endpoint, fingerprint) }
        return Dictionary(rows) { first, _ in first }
    }

    private static let live = Statement(
        """
        SELECT purpose, generation, sealed, key_id, expires_at
        FROM siwa.endpoint_secrets
        WHERE endpoint_id = $1 AND (expires_at IS NULL OR expires_at > now())
        ORDER BY purpose, generation DESC
        """
    )
}
