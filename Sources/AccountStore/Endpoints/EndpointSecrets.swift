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
}

/// Reads and changes the sealed secrets of endpoints. `siwad_reader` has no right to their table.
package enum EndpointSecrets {
    /// The secrets that are in use, the latest generation of each purpose first.
    package static func live(
        of endpoint: Int32,
        in session: borrowing Session
    ) throws(PostgresError) -> [SealedEndpointSecret] {
        try session.execute(live, endpoint).decode(SealedEndpointSecret.init)
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
