import AccountStore
import AppleTokens
import AppleSimulator

/// Somebody in the demonstration; every run has people of its own.
struct DemonstrationPerson: Sendable {
    /// For the reader.
    let name: String
    /// Apple's identifier.
    let subject: Subject
    /// The relay address.
    let email: String
    /// A session in each app group.
    let sessions: [String]

    /// Everybody.
    static func all(groups: [AudienceMap.Group]) -> [DemonstrationPerson] {
        ["Ada", "Ben", "Cleo", "Dan"].map { name in
            let tag = String(UInt32.random(in: .min ... .max), radix: 36)
            return DemonstrationPerson(
                name: name,
                subject: Subject(SimulatedEvent.randomSubject()),
                email: "\(name.lowercased())-\(tag)@privaterelay.appleid.com",
                sessions: groups.indices.map { "\(name.lowercased())-\(tag)-\($0 + 1)" }
            )
        }
    }
}

/// One notification of the demonstration, and what it must lead to.
struct DemonstrationStep: Sendable {
    /// What happened, for the reader.
    let title: String
    /// Whom it is about.
    let person: DemonstrationPerson
    /// What Apple sends.
    let event: SimulatedEvent
    /// Whether its signature is spoilt.
    var isForged = false
    /// What the endpoint must answer.
    var expectedStatus = 200
    /// The effect, for the reader.
    let expectation: String
    /// Whether the database shows the effect.
    let hasEffect: @Sendable (AccountPage) -> Bool

    /// The steps in order.
    static func all(
        people: [DemonstrationPerson],
        groups: [AudienceMap.Group],
        now: WallTime
    ) -> [DemonstrationStep] {
        guard people.count == 4, let app = groups.first?.app.rawValue else { return [] }
        let script = Script(app: app, now: now)
        return script.mail(people[0], people[1]) + script.revocation(people[2]) + script.deletion(people[3])
    }
}

/// Makes the steps.
private struct Script {
    let app: String
    let now: WallTime

    func event(_ type: String, _ person: DemonstrationPerson, secondsAgo: Int64, mail: Bool = false) -> SimulatedEvent {
        SimulatedEvent(
            type: type,
            sub: person.subject.rawValue,
            app: app,
            email: mail ? person.email : nil,
            isPrivateEmail: mail ? true : nil,
            eventTime: (now - .seconds(secondsAgo)).wholeMilliseconds,
            issuedAt: now.wholeSeconds
        )
    }

    func mail(_ ada: DemonstrationPerson, _ ben: DemonstrationPerson) -> [DemonstrationStep] {
        let off = "Mail must not be sent there any more; consent and sessions are untouched"
        let isOff: @Sendable (AccountPage) -> Bool = { page in
            page.states.allSatisfy { $0.state == "authorized" && !$0.emailIsDeliverable }
                && page.sessions.allSatisfy(\.isLive)
        }
        return [
            DemonstrationStep(
                title: "Ada switches the forwarding of her private address off.",
                person: ada,
                event: event("email-disabled", ada, secondsAgo: 30, mail: true),
                expectation: off,
                hasEffect: isOff
            ),
            DemonstrationStep(
                title: "Ben switches the forwarding off …",
                person: ben,
                event: event("email-disabled", ben, secondsAgo: 30, mail: true),
                expectation: off,
                hasEffect: isOff
            ),
            DemonstrationStep(
                title: "… and on again.",
                person: ben,
                event: event("email-enabled", ben, secondsAgo: 20, mail: true),
                expectation: "Mail may be sent again",
                hasEffect: { page in
                    page.states.allSatisfy { $0.state == "authorized" && $0.emailIsDeliverable }
                        && page.sessions.allSatisfy(\.isLive)
                }
            ),
        ]
    }

    func revocation(_ cleo: DemonstrationPerson) -> [DemonstrationStep] {
        let app = app
        let revocation = event("consent-revoked", cleo, secondsAgo: 15)
        let isRevokedOnce: @Sendable (AccountPage) -> Bool = { page in
            page.states.allSatisfy { ($0.state == "revoked") == ($0.app.rawValue == app) }
                && page.sessions.allSatisfy { $0.isLive != ($0.app.rawValue == app) }
                && page.history.count { $0.toState == "revoked" } == 1
        }
        return [
            DemonstrationStep(
                title: "Cleo stops using Sign in with Apple in one app.",
                person: cleo,
                event: revocation,
                expectation: "Her session there is ended; other apps' sessions live on",
                hasEffect: isRevokedOnce
            ),
            DemonstrationStep(
                title: "Apple delivers the same notification once more.",
                person: cleo,
                event: revocation,
                expectation: "Nothing changes: a duplicate is acknowledged, and has no effect",
                hasEffect: isRevokedOnce
            ),
        ]
    }

    func deletion(_ dan: DemonstrationPerson) -> [DemonstrationStep] {
        var forged = DemonstrationStep(
            title: "Somebody who has not Apple's key says that Dan's account is deleted.",
            person: dan,
            event: event("account-deleted", dan, secondsAgo: 10),
            expectation: "Refused, nothing changes",
            hasEffect: { page in
                page.states.allSatisfy { $0.state == "authorized" } && page.sessions.allSatisfy(\.isLive)
            }
        )
        forged.isForged = true
        forged.expectedStatus = 401
        return [
            forged,
            DemonstrationStep(
                title: "Dan deletes his Apple Account.",
                person: dan,
                event: event("account-deleted", dan, secondsAgo: 10),
                expectation: "He is deleted in every app of the team, for good, and all his sessions are ended",
                hasEffect: { page in
                    page.registers.deletedAt != nil && page.states.allSatisfy { $0.state == "deleted" }
                        && page.sessions.allSatisfy { $0.endReason == "account-deleted" }
                }
            ),
        ]
    }
}
