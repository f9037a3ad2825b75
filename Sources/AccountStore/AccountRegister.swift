package import AppleTokens
package import Postgres

/// One register of a person that holds a time, and who told of it.
package struct AccountRegister: Sendable, Equatable {
    /// Which register, as the database names its column.
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
        /// The latest sight of the address.
        case emailObserved = "email_observed_at"
    }

    /// Who told of it.
    package enum Source: Sendable, Equatable {
        /// The application, with a sign-in.
        case application
        /// A notification that is kept.
        case notification(Telling)
        /// A notification that is no longer kept; its `jti` where the history holds it.
        case dropped(id: String?)
    }

    /// The notification that set a register.
    package struct Telling: Sendable, Equatable {
        /// `jti`.
        package let id: String
        /// `endpoint`, `spool` or `replay`.
        package let source: String
        /// When its request was read.
        package let receivedAt: WallTime

        /// A notification that came this way.
        package init(id: String, source: String, receivedAt: WallTime) {
            self.id = id
            self.source = source
            self.receivedAt = receivedAt
        }
    }

    /// Which register.
    package let name: Name
    /// The app group; nil for what is true in all of them.
    package let app: AppID?
    /// What it holds.
    package let time: WallTime
    /// Who told of it.
    package let source: Source

    /// A register of these parts.
    package init(name: Name, app: AppID?, time: WallTime, source: Source) {
        self.name = name
        self.app = app
        self.time = time
        self.source = source
    }
}

extension Accounts {
    /// The registers of one person that hold a time, each with who told of it: those of all app groups first.
    ///
    /// A register that notifications feed is attributed to the first one recorded that carries its time.
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
            return .notification(AccountRegister.Telling(id: id, source: source, receivedAt: receivedAt))
        }
        return try rows.bool(row, 6) ? .application : .dropped(id: id)
    }

    // One pass over the person's notifications by their index. An address that no notification tells of was seen at a
    // sign-in, unless it came with a mail setting whose notification retention took since then.
    private static let sources = Statement(once: String(sql: PackageResources.register_sources_sql))
}
