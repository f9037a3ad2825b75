package import AppleTokens
import Postgres

/// Which sessions are looked for; nil matches everything.
package struct SessionFilter: Sendable {
    /// Whether a session is live now, by the database's clock.
    package enum Liveness: Sendable, Equatable {
        case live
        /// Ended, or expired.
        case ended
    }

    /// Why sessions end.
    package static let endReasons = [
        "consent-revoked", "account-deleted", "signed-out", "rotated", "operator", expired,
    ]
    /// The end that comes by itself.
    static let expired = "expired"

    /// The application's name for the session.
    package var id: String?
    /// Apple's identifier of the person.
    package var subject: String?
    /// The developer team.
    package var team: String?
    /// The app group.
    package var app: String?
    /// Live or ended.
    package var liveness: Liveness?
    /// Why it ended: one of ``endReasons``.
    package var endReason: String?
    /// Opened at or after.
    package var since: WallTime?
    /// Opened before.
    package var until: WallTime?
    /// At most so many rows; nil: all.
    package var limit: Int?

    /// Everything, at most `limit` rows.
    package init(
        id: String? = nil,
        subject: String? = nil,
        team: String? = nil,
        app: String? = nil,
        liveness: Liveness? = nil,
        endReason: String? = nil,
        since: WallTime? = nil,
        until: WallTime? = nil,
        limit: Int? = 50
    ) {
        self.id = id
        self.subject = subject
        self.team = team
        self.app = app
        self.liveness = liveness
        self.endReason = endReason
        self.since = since
        self.until = until
        self.limit = limit
    }

    /// Whether it names a session or a person, rather than everybody.
    var isSpecific: Bool { id != nil || subject != nil }

    /// The filter as an operator would write it, for the audit.
    var audited: String {
        let parts = [("--session", id), ("--sub", subject), ("--team", team), ("--app", app)]
        return parts.compactMap { name, value in value.map { "\(name) \($0)" } }.joined(separator: " ")
    }

    /// What a row of `siwa.sessions` has to meet, with ``binds``: a condition on nothing goes when the statement is planned
    /// for the values at hand.
    static let condition = """
        ($1::text IS NULL OR session_id = $1)
        AND ($2::text IS NULL OR sub = $2)
        AND ($3::text IS NULL OR team_id = $3)
        AND ($4::text IS NULL OR app_id = $4)
        AND ($5::boolean IS NULL OR (ended_at IS NULL AND (expires_at IS NULL OR expires_at > now())) = $5)
        AND ($6::text IS NULL OR end_reason = $6)
        AND (NOT $7::boolean OR (ended_at IS NULL AND expires_at <= now()))
        AND created_at >= $8
        AND created_at < $9
        """

    /// The values of ``condition``, and the limit behind them.
    var binds: Binds {
        Binds {
            $0.append(id)
            $0.append(subject)
            $0.append(team)
            $0.append(app)
            $0.append(liveness.map { $0 == .live })
            $0.append(endReason == Self.expired ? nil : endReason)
            $0.append(endReason == Self.expired)
            $0.append(Timestamp(since ?? WallTime(microseconds: .min)))
            $0.append(Timestamp(until ?? WallTime(microseconds: .max)))
            $0.append(limit.map { Int64(clamping: $0) })
        }
    }
}
