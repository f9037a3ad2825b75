package import AppleTokens
package import Postgres

/// What the application sees of one person in one app group (`siwa.account_states`).
package struct AccountState: Sendable, Equatable {
    /// The developer team that ``subject`` belongs to.
    package let team: TeamID
    /// Apple's identifier of the person.
    package let subject: Subject
    /// The app group, by its primary App ID.
    package let app: AppID
    /// `authorized`, `revoked`, `deleted` or `unknown`.
    package let state: String
    /// The last sign-in.
    package let authorizedAt: WallTime?
    /// The last revocation.
    package let revokedAt: WallTime?
    /// The deletion of the Apple Account.
    package let deletedAt: WallTime?
    /// The address seen last.
    package let email: String?
    /// Whether ``email`` is a relay address, as far as known.
    package let emailIsPrivate: Bool?
    /// Whether mail to ``email`` arrives, as far as Apple says.
    package let emailIsDeliverable: Bool
}

/// One change of a person's state (`siwa.account_history`).
package struct AccountChange: Sendable, Equatable {
    /// The developer team that ``subject`` belongs to.
    package let team: TeamID
    /// Apple's identifier of the person.
    package let subject: Subject
    /// The app group that the cause came from.
    package let app: AppID
    /// `consent`, `account` or `email`.
    package let facet: String
    /// The state before.
    package let fromState: String
    /// The state after.
    package let toState: String
    /// When it happened, at Apple or at the sign-in.
    package let eventTime: WallTime
    /// When it was committed here, by the database's clock at the start of the transaction.
    package let recordedAt: WallTime
    /// The notification that caused it; nil when a sign-in did.
    package let notificationID: String?
    /// How many live sessions it ended.
    package let sessionsEnded: Int
}

/// The registers of one person, from which every state follows (`siwa.accounts`).
package struct AccountRegisters: Sendable, Equatable {
    /// The developer team that ``subject`` belongs to.
    package let team: TeamID
    /// Apple's identifier of the person.
    package let subject: Subject
    /// When the person was first heard of here.
    package let firstHeardAt: WallTime
    /// The earliest deletion.
    package let deletedAt: WallTime?
    /// The latest email-disabled.
    package let forwardingDisabledAt: WallTime?
    /// The latest email-enabled.
    package let forwardingEnabledAt: WallTime?
    /// The address seen last.
    package let email: String?
    /// Whether it is a relay address, as far as known.
    package let emailIsPrivate: Bool?
    /// When it was seen; nil once it was erased.
    package let emailObservedAt: WallTime?
    /// When the personal data of a deleted account were erased.
    package let erasedAt: WallTime?
}

/// What is looked for; nil matches everything.
package struct AccountFilter: Sendable {
    /// Apple's identifier of the person.
    package var subject: String?
    /// The developer team.
    package var team: String?
    /// The app group.
    package var app: String?
    /// `authorized`, `revoked`, `deleted` or `unknown`.
    package var state: String?
    /// At most so many rows.
    package var limit: Int

    /// Everything, at most `limit` rows.
    package init(subject: String? = nil, team: String? = nil, app: String? = nil, state: String? = nil, limit: Int = 50)
    {
        self.subject = subject
        self.team = team
        self.app = app
        self.state = state
        self.limit = limit
    }

    fileprivate var binds: Binds {
        Binds {
            $0.append(subject)
            $0.append(team)
            $0.append(app)
            $0.append(state)
            $0.append(Int64(clamping: limit))
        }
    }
}

/// The reading of accounts.
package enum Accounts {
    /// The states that match, the person heard of last first.
    package static func states(
        _ filter: AccountFilter,
        in session: borrowing Session
    ) throws(PostgresError) -> [AccountState] {
        try session.execute(states, filter.binds).map { (rows, row) throws(PostgresError) in
            AccountState(
                team: TeamID(try rows.string(row, 0)),
                subject: Subject(try rows.string(row, 1)),
                app: AppID(try rows.string(row, 2)),
                state: try rows.string(row, 3),
                authorizedAt: try rows.optionalTime(row, 4),
                revokedAt: try rows.optionalTime(row, 5),
                deletedAt: try rows.optionalTime(row, 6),
                email: try rows.optionalString(row, 7),
                emailIsPrivate: try rows.optionalBool(row, 8),
                emailIsDeliverable: try rows.bool(row, 9)
            )
        }
    }

    /// The changes that match, the oldest first; of more than the limit, the latest. `filter.state` is the state after.
    package static func history(
        _ filter: AccountFilter,
        in session: borrowing Session
    ) throws(PostgresError) -> [AccountChange] {
        try session.execute(history, filter.binds).map { (rows, row) throws(PostgresError) in
            AccountChange(
                team: TeamID(try rows.string(row, 0)),
                subject: Subject(try rows.string(row, 1)),
                app: AppID(try rows.string(row, 2)),
                facet: try rows.string(row, 3),
                fromState: try rows.string(row, 4),
                toState: try rows.string(row, 5),
                eventTime: try rows.time(row, 6),
                recordedAt: try rows.time(row, 7),
                notificationID: try rows.optionalString(row, 8),
                sessionsEnded: Int(try rows.int32(row, 9))
            )
        }
    }

    /// The registers of everybody of that `sub`: at most one person in each team.
    package static func registers(
        subject: String,
        team: String?,
        in session: borrowing Session
    ) throws(PostgresError) -> [AccountRegisters] {
        let binds = Binds {
            $0.append(subject)
            $0.append(team)
        }
        return try session.execute(registers, binds).map { (rows, row) throws(PostgresError) in
            AccountRegisters(
                team: TeamID(try rows.string(row, 0)),
                subject: Subject(try rows.string(row, 1)),
                firstHeardAt: try rows.time(row, 2),
                deletedAt: try rows.optionalTime(row, 3),
                forwardingDisabledAt: try rows.optionalTime(row, 4),
                forwardingEnabledAt: try rows.optionalTime(row, 5),
                email: try rows.optionalString(row, 6),
                emailIsPrivate: try rows.optionalBool(row, 7),
                emailObservedAt: try rows.optionalTime(row, 8),
                erasedAt: try rows.optionalTime(row, 9)
            )
        }
    }

    // Planned for the values at hand, so that a filter that is left out costs nothing.
    private static let states = Statement(once: String(sql: PackageResources.account_states_sql))

    private static let history = Statement(once: String(sql: PackageResources.account_history_sql))

    private static let registers = Statement(
        once: """
            SELECT
                team_id, sub, first_heard_at, deleted_at, forwarding_disabled_at, forwarding_enabled_at, email,
                email_is_private, nullif(email_observed_at, 'infinity'), erased_at
            FROM siwa.accounts
            WHERE sub = $1 AND ($2::text IS NULL OR team_id = $2)
            ORDER BY team_id
            """
    )
}
