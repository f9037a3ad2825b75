package import AppleTokens
package import Basics
package import Postgres

/// The state of one person in one app group (`siwa.account_states`).
package struct AccountState: Sendable, Equatable {
    package let team: TeamID
    package let subject: Subject
    package let app: AppID
    /// `authorized`, `revoked`, `deleted` or `unknown`.
    package let state: String
    package let authorizedAt: WallTime?
    package let revokedAt: WallTime?
    package let deletedAt: WallTime?
    package let email: String?
    /// Whether ``email`` is a relay address; nil if unknown.
    package let emailIsPrivate: Bool?
    /// False if Apple reports that mail to ``email`` does not arrive.
    package let emailIsDeliverable: Bool
}

/// One change of a person's state (`siwa.account_history`).
package struct AccountChange: Sendable, Equatable {
    package let team: TeamID
    package let subject: Subject
    /// The app group of the notification or sign-in that caused it.
    package let app: AppID
    /// `consent`, `account`, `email` or `session`.
    package let facet: String
    package let fromState: String
    package let toState: String
    /// The time of the event at Apple, or of the sign-in.
    package let eventTime: WallTime
    /// When its transaction started, by the database's clock.
    package let recordedAt: WallTime
    /// `jti` of the notification that caused it; nil for a sign-in or an operator.
    package let notificationID: String?
    package let sessionsEnded: Int
    /// The session that an operator ended; nil for the other facets.
    package var sessionID: String?
}

/// The registers of one person, which determine every state (`siwa.accounts`).
package struct AccountRegisters: Sendable, Equatable {
    package let team: TeamID
    package let subject: Subject
    /// When the person's row was created.
    package let firstHeardAt: WallTime
    package let deletedAt: WallTime?
    package let forwardingDisabledAt: WallTime?
    package let forwardingEnabledAt: WallTime?
    package let email: String?
    /// Whether ``email`` is a relay address; nil if unknown.
    package let emailIsPrivate: Bool?
    /// When ``email`` was observed; nil after erasure.
    package let emailObservedAt: WallTime?
    package let erasedAt: WallTime?
}

/// Conditions on accounts; nil matches everything.
package struct AccountFilter: Sendable {
    package var subjects: [String]?
    package var team: String?
    package var app: String?
    /// `authorized`, `revoked`, `deleted` or `unknown`.
    package var state: String?
    package var limit: Int

    package init(subject: String? = nil, team: String? = nil, app: String? = nil, state: String? = nil, limit: Int = 50)
    {
        self.subjects = subject.map { [$0] }
        self.team = team
        self.app = app
        self.state = state
        self.limit = limit
    }

    fileprivate func conditions(stateColumn: String) -> (conditions: Conditions, limit: String) {
        var conditions = Conditions()
        if let subjects { conditions.add("sub", anyOf: subjects) }
        conditions.add("team_id = ?", team)
        conditions.add("app_id = ?", app)
        conditions.add("\(stateColumn) = ?", state)
        let limit = conditions.bind(limit)
        return (conditions, limit)
    }
}

/// A register of a person that has a time, and the source of that time.
package struct AccountRegister: Sendable, Equatable {
    /// The raw value is the database's column.
    package enum Name: String, PostgresValue, Sendable, CaseIterable {
        case authorized = "authorized_at"
        /// The last revocation of the consent for an app group.
        case revoked = "revoked_at"
        /// The earliest deletion of the Apple Account.
        case deleted = "deleted_at"
        case forwardingDisabled = "forwarding_disabled_at"
        case forwardingEnabled = "forwarding_enabled_at"
        /// The latest observation of the address.
        case emailObserved = "email_observed_at"
    }

    package enum Source: Sendable, Equatable {
        /// A sign-in that the application recorded.
        case application
        case notification(Notification)
        /// A notification that was dropped by retention; `jti` if the history has it.
        case dropped(id: String?)
    }

    package struct Notification: Sendable, Equatable {
        package let id: String
        /// `endpoint`, `spool` or `replay`.
        package let source: String
        /// When its request was read.
        package let receivedAt: WallTime
    }

    package let name: Name
    /// The app group; nil for a register of all app groups.
    package let app: AppID?
    package let time: WallTime
    package let source: Source
}

package enum Accounts {
    /// The matching states, the most recently created person first.
    package static func states(
        _ filter: AccountFilter,
        in session: borrowing Session
    ) throws(PostgresError) -> [AccountState] {
        let (conditions, limit) = filter.conditions(stateColumn: "state")
        let statement = Statement(
            once: """
                SELECT
                    team_id, sub, app_id, state, authorized_at, revoked_at, deleted_at, email, email_is_private,
                    email_deliverable
                FROM siwa.account_states
                WHERE \(conditions.sql)
                ORDER BY account_id DESC, app_id
                LIMIT \(limit)
                """
        )
        return try session.execute(statement, conditions.binds).decode(AccountState.init)
    }

    /// The latest matching changes up to the limit, oldest first. `filter.state` is the state after the change.
    package static func history(
        _ filter: AccountFilter,
        in session: borrowing Session
    ) throws(PostgresError) -> [AccountChange] {
        let (conditions, limit) = filter.conditions(stateColumn: "to_state")
        let statement = Statement(
            once: """
                SELECT
                    team_id, sub, app_id, facet, from_state, to_state, event_time, recorded_at, jti, sessions_ended,
                    session_id
                FROM siwa.account_history
                WHERE \(conditions.sql)
                ORDER BY change_id DESC
                LIMIT \(limit)
                """
        )
        return try session.execute(statement, conditions.binds).decode(AccountChange.init).reversed()
    }

    /// The registers of the people with this `sub`: at most one in each team.
    package static func registers(
        subject: String,
        team: String?,
        in session: borrowing Session
    ) throws(PostgresError) -> [AccountRegisters] {
        try session.execute(
            once: """
                SELECT
                    team_id, sub, first_heard_at, deleted_at, forwarding_disabled_at, forwarding_enabled_at, email,
                    email_is_private, nullif(email_observed_at, 'infinity'), erased_at
                FROM siwa.accounts
                WHERE sub = $1 AND ($2::text IS NULL OR team_id = $2)
                ORDER BY team_id
                """,
            subject,
            team
        ).decode(AccountRegisters.init)
    }

    /// The registers of one person that have a time, each with its source; registers of all app groups come first.
    ///
    /// If several notifications have the time of a register, its source is the one that was recorded first.
    package static func sources(
        subject: Subject,
        team: TeamID,
        in session: borrowing Session
    ) throws(PostgresError) -> [AccountRegister] {
        let rows = try session.execute(once: String(sql: PackageResources.register_sources_sql), subject, team)
        return try rows.decode {
            (
                name: AccountRegister.Name,
                app: AppID?,
                time: WallTime,
                id: String?,
                source: String?,
                receivedAt: WallTime?,
                isSignIn: Bool
            ) in
            let origin: AccountRegister.Source =
                if let id, let source, let receivedAt {
                    .notification(AccountRegister.Notification(id: id, source: source, receivedAt: receivedAt))
                } else {
                    isSignIn ? .application : .dropped(id: id)
                }
            return AccountRegister(name: name, app: app, time: time, source: origin)
        }
    }
}
