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

    /// The fates of notifications by their `jti`, as far as the database has them.
    ///
    /// - Parameter sent: each `jti` with its `sub`.
    package static func find(
        _ sent: [(id: String, subject: String)],
        in session: borrowing Session
    ) throws(PostgresError) -> [String: NotificationFate] {
        var fates: [String: NotificationFate] = [:]
        let ids = Binds { $0.appendTexts(sent.count) { sent[$0].id } }
        let idsAndSubjects = Binds { binds in
            binds.appendTexts(sent.count) { sent[$0].id }
            // An index finds the letters of a person.
            binds.appendTexts(sent.count) { sent[$0].subject }
        }
        let letters = try session.execute(letters, idsAndSubjects).decode { (jti: String, id: Int64, reason: String) in
            (jti, id, reason)
        }
        for (jti, id, reason) in letters { fates[jti] = .deadLetter(id: id, reason: reason) }
        for stored in try session.execute(stored, ids).decode(Stored.init) { fates[stored.id] = .stored(stored) }
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
            SELECT jti, id, reason FROM siwa.dead_letters
            WHERE jti = ANY ($1) AND sub = ANY ($2) AND status = 'open'
            ORDER BY id
            """
    )
}
