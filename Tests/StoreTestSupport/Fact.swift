/// Something that happened to a person, whenever and however often we hear of it.
package struct Fact: Equatable, Sendable {
    /// What happened.
    package enum What: Equatable, Sendable {
        /// Told by the application.
        case signedIn(email: String?, isPrivate: Bool?)
        /// The person signs in and a session is opened; told by the application. The session's name.
        case sessionOpened(String)
        /// Told by Apple.
        case emailDisabled(email: String?, isPrivate: Bool?)
        /// Told by Apple.
        case emailEnabled(email: String?, isPrivate: Bool?)
        /// Told by Apple.
        case consentRevoked
        /// Told by Apple.
        case accountDeleted
    }

    /// The developer team.
    package let team: String
    /// The app group.
    package let app: String
    /// The person, by a name that is the same in every telling of the history.
    package let sub: String
    /// When, in minutes after the beginning of the history.
    package let minute: Int
    /// What happened.
    package let what: What
    /// Names the notification or session; the same in every telling of the history.
    package let name: String

    /// Whether Apple tells of it; else the application does.
    package var isNotification: Bool {
        switch what {
        case .signedIn, .sessionOpened: false
        case .emailDisabled, .emailEnabled, .consentRevoked, .accountDeleted: true
        }
    }
}

/// A set of facts about a few people in a few apps and teams, with times so few that ties are common.
package struct History: Sendable {
    private static let apps = [
        ("AAAAAAAAAA", "com.example.one"), ("AAAAAAAAAA", "com.example.two"), ("BBBBBBBBBB", "com.example.other"),
    ]
    private static let emails = ["a@privaterelay.appleid.com", "b@private.icloud.com", "c@example.com"]

    /// In no order.
    package let facts: [Fact]

    /// A random history.
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

    /// The facts in another order, some of them more than once.
    package func telling(using generator: inout SeededGenerator) -> [Fact] {
        let repeated = facts.filter { _ in Int.random(in: 0..<4, using: &generator) == 0 }
        return (facts + repeated).shuffled(using: &generator)
    }
}
