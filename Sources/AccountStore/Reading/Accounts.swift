package import AppleTokens
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
    /// `consent`, `account` or `email`.
    package let facet: String
    package let fromState: String
    package let toState: String
    /// The time of the event at Apple, or of the sign-in.
    package let eventTime: WallTime
    /// When its transaction started, by the database's clock.
    package let recordedAt: WallTime
    /// `jti` of the notification that caused it; nil for a sign-in.
    package let notificationID: String?
    /// The number of live sessions that it ended.
    package let sessionsEnded: Int
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
    package var subject: String?
    package var team: String?
    package var app: String?
    /// `authorized`, `revoked`, `deleted` or `unknown`.
    package var state: String?
    package var limit: Int

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

/// A register of a person that has a time, and the source of that time.
package struct AccountRegister: Sendable, Equatable {
    /// The raw value is the database's column.
    package enum Name: String, Sendable, CaseIterable {
        /// The last sign-in to an app group.
        case authorized = "authorized_at"
        /// The last revocation of the consent for an app group.
        case revoked = "revoked_at"
        /// The earliest deletion of the Apple Account.
        case deleted = "deleted_at"
        /// The latest email-disabled.
        case forwardingDisabled = "forwarding_disabled_at"
        /// The latest email-enabled.
        case forwardingEnabled = "forwarding_enabled_at"
        /// The latest observation of the address.
        case emailObserved = "email_observed_at"
    }

    package enum Source: Sendable, Equatable {
        /// A sign-in that the application recorded.
        case application
        /// A stored notification.
        case notification(Notification)
        /// A notification that was dropped by retention; `jti` if the history has it.
        case dropped(id: String?)
    }

    package struct Notification: Sendable, Equatable {
        /// `jti`.
        package let id: String
        /// `endpoint`, `spool` or `replay`.
        package let source: String
        /// When its request was read.
        package let receivedAt: WallTime

        package init(id: String, source: String, receivedAt: WallTime) {
            self.id = id
            self.source = source
            self.receivedAt = receivedAt
        }
    }

    package let name: Name
    /// The app group; nil for a register of all app groups.
    package let app: AppID?
    package let time: WallTime
    package let source: Source

    package init(name: Name, app: AppID?, time: WallTime, source: Source) {
        self.name = name
        self.app = app
        self.time = time
        self.source = source
    }
}

/// Reads accounts.
package enum Accounts {
    /// The matching states, the most recently created person first.
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

    /// The latest matching changes up to the limit, oldest first. `filter.state` is the state after the change.
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

    /// The registers of the people with this `sub`: at most one in each team.
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

    /// The registers of one person that have a time, each with its source; registers of all app groups come first.
    ///
    /// If several notifications have the time of a register, its source is the one that was recorded first.
    package static func sources(
        subject: Subject,
        team: TeamID,
        in session: borrowing Session
    ) throws(PostgresError) -> [AccountRegister] {
        let binds = Binds {
            $0.append(subject.rawValue)
            $0.append(team.rawValue)
        }
        return try session.execute(sources, binds).map { (rows, row) throws(PostgresError) in
            let name = try rows.string(row, 0)
            guard let name = AccountRegister.Name(rawValue: name) else {
                throw PostgresError(.decoding, "there is no register \(name)")
            }
            return AccountRegister(
                name: name,
                app: try rows.optionalString(row, 1).map { AppID($0) },
                time: try rows.time(row, 2),
                source: try source(rows, row)
            )
        }
    }

    private static func source(_ rows: borrowing Rows, _ row: Int) throws(PostgresError) -> AccountRegister.Source {
        let id = try rows.optionalString(row, 3)
        if let id, let source = try rows.optionalString(row, 4), let receivedAt = try rows.optionalTime(row, 5) {
            return .notification(AccountRegister.Notification(id: id, source: source, receivedAt: receivedAt))
        }
        return try rows.bool(row, 6) ? .application : .dropped(id: id)
    }

    // Planned for the actual values, so that an absent condition costs nothing.
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

    private static let sources = Statement(once: String(sql: PackageResources.register_sources_sql))
}
