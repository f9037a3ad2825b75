/// The expected state after the facts of one history. It sorts the events by time and applies them one by one, so it shares no
/// logic with the registers of the database.
package struct Model {
    struct Person: Hashable {
        let team: String
        let sub: String
    }

    struct Consent: Hashable {
        let person: Person
        let app: String
    }

    struct ConsentState: Equatable {
        var state = "unknown"
        var authorizedAt: Int?
        var revokedAt: Int?
    }

    struct PersonState: Equatable {
        var deletedAt: Int?
        var forwards = true
        var email: String?
        var emailIsPrivate: Bool?

        /// Forwarding applies to relay addresses and to addresses that may be relay addresses.
        var receivesMail: Bool { forwards || emailIsPrivate == false }
    }

    struct SessionState: Equatable {
        var endedAt: Int?
        var reason: String?
    }

    private(set) var people: [Person: PersonState] = [:]
    private(set) var consents: [Consent: ConsentState] = [:]
    private(set) var sessions: [String: SessionState] = [:]
    /// Consents that only sign-ins mention. They may have no row, because a deleted account refuses sign-ins.
    private(set) var onlySignedIn: Set<Consent> = []

    package init(_ facts: [Fact]) {
        let notified = Set(facts.filter(\.isNotification).map(Self.consent))
        onlySignedIn = Set(facts.map(Self.consent)).subtracting(notified)
        for fact in facts {
            people[Self.consent(fact).person] = people[Self.consent(fact).person] ?? PersonState()
            consents[Self.consent(fact)] = consents[Self.consent(fact)] ?? ConsentState()
        }
        // Within a minute, events that take rights away come last: a tie ends in the safe state.
        for fact in facts.sorted(by: { ($0.minute, Self.severity($0)) < ($1.minute, Self.severity($1)) }) {
            apply(fact)
        }
        observeEmails(facts)
        endDeleted(facts)
    }

    private static func consent(_ fact: Fact) -> Consent {
        Consent(person: Person(team: fact.team, sub: fact.sub), app: fact.app)
    }

    private static func severity(_ fact: Fact) -> Int {
        switch fact.what {
        case .signedIn, .emailEnabled: 0
        case .sessionOpened: 1
        case .emailDisabled, .consentRevoked: 2
        case .accountDeleted: 3
        }
    }

    private mutating func apply(_ fact: Fact) {
        let consent = Self.consent(fact)
        switch fact.what {
        case .signedIn:
            consents[consent]?.state = "authorized"
            consents[consent]?.authorizedAt = fact.minute
        case .sessionOpened(let name):
            consents[consent]?.state = "authorized"
            consents[consent]?.authorizedAt = fact.minute
            sessions[name] = SessionState()
            openIn[name] = consent
            openedAt[name] = fact.minute
        case .emailDisabled:
            people[consent.person]?.forwards = false
        case .emailEnabled:
            people[consent.person]?.forwards = true
        case .consentRevoked:
            consents[consent]?.state = "revoked"
            consents[consent]?.revokedAt = fact.minute
            for (name, home) in openIn where home == consent {
                sessions[name] = SessionState(endedAt: fact.minute, reason: "consent-revoked")
            }
        case .accountDeleted:
            let known = people[consent.person]?.deletedAt
            people[consent.person]?.deletedAt = known ?? fact.minute
        }
    }

    func isAccountDeleted(ofSession name: String) -> Bool {
        openIn[name].flatMap { people[$0.person]?.deletedAt } != nil
    }

    /// The consent and minute of each session's opening.
    private var openIn: [String: Consent] = [:]
    private var openedAt: [String: Int] = [:]

    /// The latest address. Within a minute the greatest address wins, then the greatest flag.
    private mutating func observeEmails(_ facts: [Fact]) {
        typealias Observation = (minute: Int, email: String, isPrivate: Bool?)
        var seen: [Person: [Observation]] = [:]
        for fact in facts {
            switch fact.what {
            case .signedIn(let email?, let isPrivate), .emailDisabled(let email?, let isPrivate),
                .emailEnabled(let email?, let isPrivate):
                seen[Self.consent(fact).person, default: []].append((fact.minute, email, isPrivate))
            case .signedIn, .emailDisabled, .emailEnabled, .sessionOpened, .consentRevoked, .accountDeleted:
                break
            }
        }
        let rank: (Bool?) -> Int = { $0.map { $0 ? 2 : 1 } ?? 0 }
        for (person, observations) in seen {
            let last = observations.max {
                ($0.minute, $0.email, rank($0.isPrivate)) < ($1.minute, $1.email, rank($1.isPrivate))
            }
            people[person]?.email = last?.email
            people[person]?.emailIsPrivate = last?.isPrivate
        }
    }

    /// A deletion is final and applies to all app groups of the team, whatever else happened at any time.
    private mutating func endDeleted(_ facts: [Fact]) {
        for consent in consents.keys where people[consent.person]?.deletedAt != nil {
            consents[consent]?.state = "deleted"
        }
        for (name, home) in openIn {
            guard let deletedAt = people[home.person]?.deletedAt, let opened = openedAt[name] else { continue }
            let end = max(deletedAt, opened)
            if let ended = sessions[name]?.endedAt, ended < end { continue }
            sessions[name] = SessionState(endedAt: end, reason: "account-deleted")
        }
    }
}
