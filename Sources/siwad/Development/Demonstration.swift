import AccountStore
import AppleSimulator
import AppleTokens
import Basics
import Listening
import Postgres
import ServiceLifecycle
import Terminal
import WebClient

/// The demonstration of `siwad dev`: people sign in, the simulated Apple sends every type of event to the real endpoint, and
/// the database is checked after each event.
struct Demonstration: Sendable {
    let apple: SimulatedApple
    /// One or two groups of one team.
    let groups: [AudienceMap.Group]
    let pool: ConnectionPool
    /// The application that gets the changes; nil: there is none.
    let receiver: DemonstrationReceiver?
    /// The second part: Eve signs in with her phone.
    let nativeSignIn: DemonstrationSignIn
    let console: Console

    /// - Returns: true if every event had the expected effect, and the application got every change once.
    /// - Throws: `CancellationError` if the process shuts down.
    func play(against url: String, over loops: EventLoops) async throws -> Bool {
        var deliveries = receiver.map { DemonstrationDeliveries(to: $0, pool: pool, console: console) }
        let now = WallTime.now()
        let people = DemonstrationPerson.all(groups: groups)
        let apps = groups.map(\.app.rawValue).joined(separator: " and ")
        console.print("Four people sign in to \(apps), each with a private address:")
        for person in people { try await signIn(person, at: now - .seconds(120)) }
        let columns: [Column<DemonstrationPerson>] = [
            .init("name", \.name, "WHO"), .init("sub", \.subject.rawValue, "SUB", .cutEnd(minimum: 20)),
            .init("email", \.email, "ADDRESS", .cutEnd(minimum: 20)),
        ]
        console.print(lines: columns.table(of: people).lines(style: console.style, indentation: 2))
        let sender = try NotificationSender(url: url, version: Version.current, eventLoopGroup: loops.group)
        var isAsExpected = true
        for step in DemonstrationStep.all(people: people, app: groups[0].app, now: now) {
            guard !Task.isShuttingDownGracefully else { throw CancellationError() }
            isAsExpected = try await play(step, with: sender, telling: &deliveries) && isAsExpected
        }
        let eve = try await nativeSignIn.play(telling: &deliveries)
        let areDelivered = try await deliveries?.check() ?? true
        try await printOutcome(people.map(\.subject) + [eve.subject].compactMap(\.self))
        return isAsExpected && eve.isAsExpected && areDelivered
    }

    /// - Returns: true if the event had the expected effect, and the application got the change.
    private func play(
        _ step: DemonstrationStep,
        with sender: NotificationSender,
        telling deliveries: inout DemonstrationDeliveries?
    ) async throws -> Bool {
        let subject = step.person.subject
        deliveries?.stepBegins(refusing: step.isRetried ? subject.rawValue : nil)
        let status = try await send(step, with: sender)
        let page = try await page(of: subject)
        let isRight = status == step.expectedStatus && step.effect.shows(in: page)
        report(step, status: status, isRight: isRight, page: page)
        let change = step.change.map { DemonstrationDeliveries.Change(subject: subject.rawValue, type: $0) }
        let isTold = try await deliveries?.tell(change) ?? true
        return isRight && isTold
    }

    private func signIn(_ person: DemonstrationPerson, at time: WallTime) async throws {
        let groups = groups
        try await pool.transaction { session throws(PostgresError) in
            for (group, id) in zip(groups, person.sessions) {
                try Applications.recordSignIn(
                    client: group.clients[0],
                    subject: person.subject,
                    email: person.email,
                    emailIsPrivate: true,
                    signedInAt: time,
                    in: session
                )
                try Applications.openSession(
                    client: group.clients[0],
                    subject: person.subject,
                    session: id,
                    createdAt: time,
                    in: session
                )
            }
        }
    }

    private func send(_ step: DemonstrationStep, with sender: NotificationSender) async throws -> Int {
        let token = try apple.token(for: step.event)
        let body = Array(SimulatedApple.body(token: step.isForged ? Self.forged(token) : token).utf8)
        let summary = try await sender.send(count: 1, body: { _ in body })
        if let status = summary.statuses.first?.key { return status }
        let cause = summary.firstFailure ?? "unknown cause"
        throw CommandFailure(.unavailable, "the endpoint did not respond: \(cause)")
    }

    /// The token with another character in the middle of its signature.
    private static func forged(_ token: String) -> String {
        var bytes = Array(token.utf8)
        let place = bytes.count - 100
        bytes[place] = bytes[place] == UInt8(ascii: "A") ? UInt8(ascii: "B") : UInt8(ascii: "A")
        return String(decoding: bytes, as: UTF8.self)
    }

    private func page(of subject: Subject) async throws -> AccountPage {
        let team = groups.first?.team.rawValue
        let pages = try await pool.transaction { session throws(PostgresError) in
            try AccountPage.pages(subject: subject.rawValue, team: team, limit: 50, in: session)
        }
        guard let page = pages.first else {
            throw CommandFailure(.failed, "\(subject) is not in the database although the sign-in was recorded")
        }
        return page
    }

    private func report(_ step: DemonstrationStep, status: Int, isRight: Bool, page: AccountPage) {
        let mark = isRight ? console.style.painted("✓", .green) : console.style.painted("✗", .red)
        console.print("\n\(mark) \(step.title)")
        let answer = status == 200 ? "200 after the commit" : "\(status)"
        console.print("    POST \(step.event.type)\(step.isForged ? ", forged" : "") for \(step.event.app): \(answer)")
        if isRight {
            console.print("    \(step.expectation)")
        } else {
            console.print("    expected \(step.expectedStatus) and: \(step.expectation); found:")
            console.print(lines: page.lines(style: console.style).map { "    " + $0 })
        }
    }

    private func printOutcome(_ people: [Subject]) async throws {
        var states: [AccountState] = []
        var sessions: [AccountSession] = []
        for person in people {
            let page = try await page(of: person)
            states += page.states
            sessions += page.sessions
        }
        func show(_ title: String, _ table: Table) {
            console.print(lines: ["", console.style.painted(title, .bold)])
            console.print(lines: table.lines(style: console.style, indentation: 2))
        }
        show("Accounts afterwards (siwa.account_states)", AccountListings.states(states).table)
        show("Sessions afterwards (siwa.sessions)", AccountListings.sessions(sessions).table)
        if receiver != nil {
            let endpoints = try await pool.withSession(Endpoints.overviews)
            show("Endpoints afterwards (siwad endpoints list)", EndpointListing.list(endpoints, now: .now()).table)
        }
        console.print()
    }
}

struct DemonstrationPerson: Sendable {
    let name: String
    let subject: Subject
    let email: String
    /// One session in each app group.
    let sessions: [String]

    static func all(groups: [AudienceMap.Group]) -> [DemonstrationPerson] {
        ["Ada", "Ben", "Cleo", "Dan"].map { name in
            let tag = String(UInt32.random(in: .min ... .max), radix: 36)
            return DemonstrationPerson(
                name: name,
                subject: Subject(SimulatedEvent.randomSubject()),
                email: "\(name.lowercased())-\(tag)@\(SimulatedPerson.relayDomain(of: name.lowercased()))",
                sessions: groups.indices.map { "\(name.lowercased())-\(tag)-\($0 + 1)" }
            )
        }
    }
}

struct DemonstrationStep: Sendable {
    enum Effect: Sendable {
        case signedIn(mail: Bool)
        case revokedOnce(AppID)
        case deleted

        func shows(in page: AccountPage) -> Bool {
            let (states, sessions) = (page.states, page.sessions)
            return switch self {
            case .signedIn(let mail):
                states.allSatisfy { $0.state == "authorized" && $0.emailIsDeliverable == mail }
                    && sessions.allSatisfy(\.isLive)
            case .revokedOnce(let app):
                states.allSatisfy { ($0.state == "revoked") == ($0.app == app) }
                    && sessions.allSatisfy { $0.isLive != ($0.app == app) }
                    && page.history.count { $0.toState == "revoked" } == 1
            case .deleted:
                page.registers.deletedAt != nil && states.allSatisfy { $0.state == "deleted" }
                    && sessions.allSatisfy { $0.endReason == "account-deleted" }
            }
        }
    }

    var title: String
    let person: DemonstrationPerson
    let event: SimulatedEvent
    var isForged = false
    /// The event that the application gets; nil: none.
    var change: String?
    /// The application answers 500 once, and gets the change again.
    var isRetried = false
    var expectation: String
    let effect: Effect

    var expectedStatus: Int { isForged ? 401 : 200 }

    static func all(people: [DemonstrationPerson], app: AppID, now: WallTime) -> [DemonstrationStep] {
        let types = [
            "email-disabled": "siwa.email.forwarding_disabled", "email-enabled": "siwa.email.forwarding_enabled",
            "consent-revoked": "siwa.consent.revoked", "account-deleted": "siwa.account.deleted",
        ]
        let (ada, ben, cleo, dan) = (people[0], people[1], people[2], people[3])
        func step(
            _ title: String,
            _ person: DemonstrationPerson,
            _ type: String,
            secondsAgo: Int64,
            _ expectation: String,
            _ effect: Effect
        ) -> DemonstrationStep {
            let isAboutMail = type.hasPrefix("email-")
            let event = SimulatedEvent(
                type: type,
                sub: person.subject.rawValue,
                app: app.rawValue,
                email: isAboutMail ? person.email : nil,
                isPrivateEmail: isAboutMail ? true : nil,
                eventTime: (now - .seconds(secondsAgo)).wholeMilliseconds,
                issuedAt: now.wholeSeconds
            )
            return DemonstrationStep(
                title: title,
                person: person,
                event: event,
                change: types[type],
                expectation: expectation,
                effect: effect
            )
        }
        let switchOff = "Ada switches the forwarding of her private address off."
        let off = "Mail must not be sent there any more; consent and sessions are untouched"
        let revoke = "Cleo stops using Sign in with Apple in one app."
        let revoked = "Her session there is ended; other apps' sessions live on"
        let revocation = step(revoke, cleo, "consent-revoked", secondsAgo: 15, revoked, .revokedOnce(app))
        var duplicate = revocation
        duplicate.change = nil
        duplicate.title = "Apple delivers the same notification once more."
        duplicate.expectation = "Nothing changes: a duplicate is acknowledged, and has no effect"
        let forge = "A sender without Apple's key claims that Dan's account is deleted."
        let refused = "Refused, nothing changes"
        var forgery = step(forge, dan, "account-deleted", secondsAgo: 10, refused, .signedIn(mail: true))
        forgery.isForged = true
        forgery.change = nil
        var again = step(
            "… and on again.",
            ben,
            "email-enabled",
            secondsAgo: 20,
            "Mail may be sent again",
            .signedIn(mail: true)
        )
        again.isRetried = true
        let deleted = "He is deleted in every app of the team, for good, and all his sessions are ended"
        return [
            step(switchOff, ada, "email-disabled", secondsAgo: 30, off, .signedIn(mail: false)),
            step(
                "Ben switches the forwarding off …",
                ben,
                "email-disabled",
                secondsAgo: 30,
                off,
                .signedIn(mail: false)
            ),
            again, revocation, duplicate, forgery,
            step("Dan deletes his Apple Account.", dan, "account-deleted", secondsAgo: 10, deleted, .deleted),
        ]
    }
}
