import AppleTokens
import Basics
package import Postgres

/// A refresh token, sealed with a key of `SIWAD_SEALING_KEYS`: see ``SealedRefreshToken``.
package struct SealedToken: Sendable, Equatable {
    package let sealed: [UInt8]
    package let keyName: String

    package init(sealed: [UInt8], keyName: String) {
        self.sealed = sealed
        self.keyName = keyName
    }
}

/// Apple's refresh tokens (`siwa.apple_tokens`): one for each person and client, of the latest sign-in.
package enum RefreshTokens {
    /// Stores the token of a sign-in, unless a later sign-in has stored one. Call it in the transaction of
    /// ``SignIns/settle(_:in:)``.
    package static func store(
        _ token: SealedToken,
        of signIn: SettledSignIn,
        in transaction: borrowing Session
    ) throws(PostgresError) {
        _ = try transaction.execute(
            store,
            signIn.accountID,
            signIn.client,
            signIn.app,
            signIn.signedInAt,
            token.sealed,
            token.keyName
        )
    }

    /// Stores tokens as ``store(_:of:in:)`` does, with one statement.
    package static func store(
        _ batch: [(token: SealedToken, signIn: SettledSignIn)],
        in transaction: borrowing Session
    ) throws(PostgresError) {
        let binds = Binds { binds in
            binds.append(array: batch.map(\.signIn.accountID))
            binds.appendTexts(batch.count) { batch[$0].signIn.client.rawValue }
            binds.appendTexts(batch.count) { batch[$0].signIn.app.rawValue }
            binds.appendTimestamps(batch.count) { Timestamp(batch[$0].signIn.signedInAt) }
            binds.appendBytes(batch.count) { batch[$0].token.sealed }
            binds.appendTexts(batch.count) { batch[$0].token.keyName }
        }
        _ = try transaction.execute(storeBatch, binds)
    }

    /// Marks tokens that no key opens. They are never sent to Apple, and end nothing.
    ///
    /// - Parameter identities: `account_id` and `client_id` as texts.
    /// - Returns: the number of tokens that were not marked before.
    static func setAside(_ identities: [[String]], in transaction: borrowing Session) throws(PostgresError) -> Int {
        let binds = Binds { binds in
            binds.appendTexts(identities.count) { identities[$0][0] }
            binds.appendTexts(identities.count) { identities[$0][1] }
        }
        return try transaction.execute(setAside, binds).affectedRows
    }

    private static let setAside = Statement(
        once: """
            UPDATE siwa.apple_tokens AS t SET state = 'unreadable'
            FROM unnest($1::text[], $2::text[]) AS n (account_id, client_id)
            WHERE t.account_id = n.account_id::bigint AND t.client_id = n.client_id AND t.state <> 'unreadable'
            """
    )
    private static let storeBatch = Statement(
        """
        INSERT INTO siwa.apple_tokens AS t (account_id, client_id, app_id, obtained_at, sealed, key_name, due_at)
        SELECT account_id, client_id, app_id, obtained_at, sealed, key_name, obtained_at + interval '25 h'
        FROM unnest($1::bigint[], $2::text[], $3::text[], $4::timestamptz[], $5::bytea[], $6::text[])
            AS n (account_id, client_id, app_id, obtained_at, sealed, key_name)
        ON CONFLICT ON CONSTRAINT apple_tokens_pkey DO UPDATE
        SET app_id = excluded.app_id,
            obtained_at = excluded.obtained_at,
            sealed = excluded.sealed,
            key_name = excluded.key_name,
            validated_at = NULL,
            asked_at = NULL,
            lease_until = NULL,
            due_at = excluded.due_at,
            refusals = 0,
            state = 'valid'
        WHERE t.obtained_at <= excluded.obtained_at
        """
    )
    private static let store = Statement("SELECT siwa.store_refresh_token($1, $2, $3, $4, $5, $6)")
}
