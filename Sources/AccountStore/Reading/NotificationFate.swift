package import Basics
package import Postgres

/// What became of a notification that was received.
package enum NotificationFate: Sendable, Equatable {
    case stored(Stored)
    case deadLetter(id: Int64, reason: String)

    package struct Stored: Sendable, Equatable {
        package let id: String
        package let eventType: String
        package let eventTime: WallTime
        /// `applied`, `superseded` or `unchanged`.
        package let outcome: String
        package let sessionsEnded: Int
        // What is known of the person at present.
        package let deletedAt: WallTime?
        package let forwardingDisabledAt: WallTime?
        package let forwardingEnabledAt: WallTime?
        package let authorizedAt: WallTime?
        package let revokedAt: WallTime?
    }

    /// The fate of each notification; nil if the database does not have it.
    ///
    /// - Parameter sent: each `jti` with the SHA-256 of its compact JWS. A dead letter is found by the digest, because it
    ///   stores long claims cut, and claims that can't be read not at all.
    package static func find(
        _ sent: [(id: String, tokenDigest: [UInt8])],
        in session: borrowing Session
    ) throws(PostgresError) -> [NotificationFate?] {
        let ids = Binds { $0.appendTexts(sent.count) { sent[$0].id } }
        let digests = Binds { $0.appendBytes(sent.count) { sent[$0].tokenDigest } }
        var known: [String: Stored] = [:]
        for found in try session.execute(stored, ids).decode(Stored.init) { known[found.id] = found }
        var fates: [NotificationFate?] = sent.map { one in known[one.id].map { NotificationFate.stored($0) } }
        let open = try session.execute(letters, digests).decode { (position: Int, id: Int64, reason: String) in
            (position, id, reason)
        }
        for (position, id, reason) in open where fates[position - 1] == nil {
            fates[position - 1] = .deadLetter(id: id, reason: reason)
        }
        return fates
    }

    private static let stored = Statement(
        once: """
            SELECT
                n.jti, n.event_type, n.event_time, n.outcome, n.sessions_ended, a.deleted_at, a.forwarding_disabled_at,
                a.forwarding_enabled_at, c.authorized_at, c.revoked_at
            FROM siwa.notifications AS n
            JOIN siwa.accounts AS a ON a.sub = n.sub AND a.team_id = n.team_id
            LEFT JOIN siwa.consents AS c ON c.account_id = a.account_id AND c.app_id = n.app_id
            WHERE n.jti = ANY ($1)
            ORDER BY n.received_at
            """
    )

    private static let letters = Statement(
        once: """
            SELECT s.position, d.id, d.reason
            FROM unnest($1::bytea[]) WITH ORDINALITY AS s (token_digest, position)
            JOIN siwa.dead_letters AS d ON d.token_digest = s.token_digest AND d.status = 'open'
            """
    )
}
