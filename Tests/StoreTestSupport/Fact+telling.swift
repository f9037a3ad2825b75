package import AccountStore
package import AppleTokens
package import Postgres

extension Fact {
    /// When it happened, in a history that begins at `start`.
    package func time(since start: WallTime) -> WallTime {
        start + .seconds(60 * minute)
    }

    /// What Apple calls it; an application's fact has no such name.
    package var appleType: String {
        switch what {
        case .emailDisabled: "email-disabled"
        case .emailEnabled: "email-enabled"
        case .consentRevoked: "consent-revoked"
        // In both spellings, as the history has it.
        case .accountDeleted: minute.isMultiple(of: 2) ? "account-delete" : "account-deleted"
        case .signedIn, .sessionOpened: preconditionFailure("not a notification")
        }
    }

    /// The address that comes with it.
    package var email: String? {
        switch what {
        case .emailDisabled(let email, _), .emailEnabled(let email, _), .signedIn(let email, _): email
        case .consentRevoked, .accountDeleted, .sessionOpened: nil
        }
    }

    /// Whether that address is said to be private.
    package var emailIsPrivate: Bool? {
        switch what {
        case .emailDisabled(_, let isPrivate), .emailEnabled(_, let isPrivate), .signedIn(_, let isPrivate): isPrivate
        case .consentRevoked, .accountDeleted, .sessionOpened: nil
        }
    }

    /// The verified notification that tells of it, in a telling whose people and identifiers have this prefix.
    package func notification(prefix: String, since start: WallTime) -> ReceivedNotification {
        .sample(
            appleType,
            sub: prefix + sub,
            at: time(since: start),
            id: prefix + name,
            team: team,
            app: app,
            email: email,
            emailIsPrivate: emailIsPrivate
        )
    }

    /// Tells a fact of the application's to the database, as the application does.
    package func tell(prefix: String, since start: WallTime, in session: borrowing Session) throws(PostgresError) {
        let subject = Subject(prefix + sub)
        switch what {
        case .signedIn(let email, let isPrivate):
            try signIn(subject, email: email, isPrivate: isPrivate, since: start, in: session)
        case .sessionOpened(let name):
            try signIn(subject, email: nil, isPrivate: nil, since: start, in: session)
            do throws(PostgresError) {
                try Applications.openSession(
                    client: ClientID(app),
                    subject: subject,
                    session: prefix + name,
                    createdAt: time(since: start),
                    in: session
                )
            } catch let error where error.sqlState?.rawValue == "SW003" {
                // The account was deleted before any sign-in was recorded.
            }
        case .emailDisabled, .emailEnabled, .consentRevoked, .accountDeleted:
            preconditionFailure("a notification")
        }
    }

    private func signIn(
        _ subject: Subject,
        email: String?,
        isPrivate: Bool?,
        since start: WallTime,
        in session: borrowing Session
    ) throws(PostgresError) {
        do throws(PostgresError) {
            try Applications.recordSignIn(
                client: ClientID(app),
                subject: subject,
                email: email,
                emailIsPrivate: isPrivate,
                signedInAt: time(since: start),
                in: session
            )
        } catch let error where error.sqlState?.rawValue == "SW002" {
            // A deleted account: the application is told so, and there is nothing to record.
        }
    }
}
