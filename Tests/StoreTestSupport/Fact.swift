package import AccountStore
import AppleTokens
package import Basics
package import Postgres

/// An event in the life of a person. It may be delivered at any time and repeatedly.
package struct Fact: Equatable, Sendable {
    package enum What: Equatable, Sendable {
        // Recorded by the application.
        case signedIn(email: String?, isPrivate: Bool?)
        /// The person signs in and opens a session of this name.
        case sessionOpened(String)
        // Notifications.
        case emailDisabled(email: String?, isPrivate: Bool?)
        case emailEnabled(email: String?, isPrivate: Bool?)
        case consentRevoked
        case accountDeleted
    }

    package let team: String
    package let app: String
    /// The name of the person, without the prefix of a delivery.
    package let sub: String
    /// The time in minutes after the start of the history.
    package let minute: Int
    package let what: What
    /// The id of the notification or session, without the prefix of a delivery.
    package let name: String

    /// True for a notification, false for a record of the application.
    package var isNotification: Bool {
        switch what {
        case .signedIn, .sessionOpened: false
        case .emailDisabled, .emailEnabled, .consentRevoked, .accountDeleted: true
        }
    }
}

extension Fact {
    /// The time of the event in a history that begins at `start`.
    package func time(since start: WallTime) -> WallTime {
        start + .seconds(60 * minute)
    }

    /// The event type in Apple's spelling. Only notifications have one.
    package var appleType: String {
        switch what {
        case .emailDisabled: "email-disabled"
        case .emailEnabled: "email-enabled"
        case .consentRevoked: "consent-revoked"
        // Uses both spellings.
        case .accountDeleted: minute.isMultiple(of: 2) ? "account-delete" : "account-deleted"
        case .signedIn, .sessionOpened: preconditionFailure("not a notification")
        }
    }

    package var email: String? {
        switch what {
        case .emailDisabled(let email, _), .emailEnabled(let email, _), .signedIn(let email, _): email
        case .consentRevoked, .accountDeleted, .sessionOpened: nil
        }
    }

    package var emailIsPrivate: Bool? {
        switch what {
        case .emailDisabled(_, let isPrivate), .emailEnabled(_, let isPrivate), .signedIn(_, let isPrivate): isPrivate
        case .consentRevoked, .accountDeleted, .sessionOpened: nil
        }
    }

    /// The notification of the event, in a delivery whose people and ids have this prefix.
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

    /// Records the event in the database as an application does. Not for notifications.
    package func record(prefix: String, since start: WallTime, in session: borrowing Session) throws(PostgresError) {
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
            // The account is deleted: the application gets an error and there is nothing to record.
        }
    }
}

/// Random facts about a few people in a few apps and teams. There are few different times, so ties are common.
package struct History: Sendable {
    private static let apps = [
        ("AAAAAAAAAA", "com.example.one"), ("AAAAAAAAAA", "com.example.two"), ("BBBBBBBBBB", "com.example.other"),
    ]
    private static let emails = ["a@privaterelay.appleid.com", "b@private.icloud.com", "c@example.com"]

    package let facts: [Fact]

    package init(using generator: inout SeededGenerator) {
        let people = Int.random(in: 1...2, using: &generator)
        let mayDelete = Int.random(in: 0..<3, using: &generator) == 0
        var facts: [Fact] = []
        for index in 0..<Int.random(in: 2...9, using: &generator) {
            let (team, app) = Self.apps[Int.random(in: 0..<Self.apps.count, using: &generator)]
            facts.append(
                Fact(
                    team: team,
                    app: app,
                    sub: "person\(Int.random(in: 0..<people, using: &generator))",
                    minute: Int.random(in: 0..<5, using: &generator),
                    what: Self.what(index, mayDelete, using: &generator),
                    name: "\(index)"
                )
            )
        }
        self.facts = facts
    }

    private static func what(_ index: Int, _ mayDelete: Bool, using generator: inout SeededGenerator) -> Fact.What {
        let email = Bool.random(using: &generator) ? emails.randomElement(using: &generator) : nil
        let isPrivate = [true, false, nil].randomElement(using: &generator) ?? nil
        switch Int.random(in: 0..<(mayDelete ? 12 : 11), using: &generator) {
        case 0, 1, 2: return .signedIn(email: email, isPrivate: isPrivate)
        case 3, 4: return .sessionOpened("session\(index)")
        case 5, 6: return .emailDisabled(email: email, isPrivate: isPrivate)
        case 7, 8: return .emailEnabled(email: email, isPrivate: isPrivate)
        case 9, 10: return .consentRevoked
        default: return .accountDeleted
        }
    }

    /// The facts in a random order, some of them repeated.
    package func delivery(using generator: inout SeededGenerator) -> [Fact] {
        let repeated = facts.filter { _ in Int.random(in: 0..<4, using: &generator) == 0 }
        return (facts + repeated).shuffled(using: &generator)
    }
}
