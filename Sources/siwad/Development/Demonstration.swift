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
    let console: Console

    /// - Returns: true if every event had the expected effect.
    /// - Throws: `CancellationError` between two events if the process shuts down.
    func play(against url: String, over loops: EventLoops) async throws -> Bool {
        defer { receiver?.stopCollecting() }
        let sender = try NotificationSender(url: url, version: Version.current, eventLoopGroup: loops.group)
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
        var isAsExpected = true
        for step in DemonstrationStep.all(people: people, app: groups[0].app, now: now) {
            guard !Task.isShuttingDownGracefully else { throw CancellationError() }
            if step.isRetried { receiver?.refuseOnce(subject: step.person.subject.rawValue) }
            let before = receiver?.messages.count ?? 0
            let start = ContinuousClock.now
            let status = try await send(step, with: sender)
            let page = try await page(of: step.person)
            let isRight = status == step.expectedStatus && step.effect.shows(in: page)
            isAsExpected = isAsExpected && isRight
            report(step, status: status, isRight: isRight, page: page)
            if let receiver {
                let isDelivered = try await tell(step, to: receiver, after: before, since: start)
                isAsExpected = isAsExpected && isDelivered
            }
        }
        if let receiver {
            let isDelivered = try await checkMessages(to: receiver, people)
            isAsExpected = isAsExpected && isDelivered
        }
        try await printOutcome(people)
        return isAsExpected
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

    private func page(of person: DemonstrationPerson) async throws -> AccountPage {
        let team = groups.first?.team.rawValue
        let pages = try await pool.transaction { session throws(PostgresError) in
            try AccountPage.pages(subject: person.subject.rawValue, team: team, limit: 50, in: session)
        }
        guard let page = pages.first else {
            throw CommandFailure(.failed, "\(person.name) is not in the database although the sign-in was recorded")
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

    /// Waits until the application gets the change of a step, and reports it.
    ///
    /// - Parameters:
    ///   - count: the number of messages before the step.
    ///   - start: when the step began.
    /// - Returns: false if the message is missing, of another type or not signed.
    private func tell(
        _ step: DemonstrationStep,
        to receiver: DemonstrationReceiver,
        after count: Int,
        since start: ContinuousClock.Instant
    ) async throws -> Bool {
        guard let type = step.change else {
            // A message that comes later nevertheless is found at the end.
            console.print("    told nothing")
            return true
        }
        let deadline = start + .seconds(10)
        var refusedAt: ContinuousClock.Instant?
        while .now < deadline {
            let messages = receiver.messages.dropFirst(count).filter { $0.subject == step.person.subject.rawValue }
            if let refused = messages.first(where: { !$0.isAccepted }), refusedAt == nil {
                refusedAt = refused.arrivedAt
                console.print("    the application answered 500 to \(refused.type); it is sent again")
            }
            if let message = messages.first(where: \.isAccepted) {
                let time = (message.arrivedAt - (refusedAt ?? start)).milliseconds
                let when = refusedAt == nil ? "in \(time) ms" : "\(time) ms later"
                let id = message.id ?? "a message that is not signed"
                let signature = message.id == nil ? "" : ", signature verified"
                console.print("    told the application \(when): \(message.type) (\(id))\(signature)")
                return message.id != nil && message.type == type && (refusedAt != nil) == step.isRetried
            }
            try await Task.sleep(for: .milliseconds(2))
        }
        console.print("    \(console.style.painted("✗", .red)) the application did not get \(type)")
        return false
    }

    /// False if the application got a change twice, or other changes than the steps make.
    private func checkMessages(to receiver: DemonstrationReceiver, _ people: [DemonstrationPerson]) async throws -> Bool
    {
        let expected = DemonstrationStep.all(people: people, app: groups[0].app, now: .now()).compactMap(\.change)
        let subjects = Set(people.map(\.subject.rawValue))
        let accepted = receiver.messages.filter { $0.isAccepted && subjects.contains($0.subject) }
        guard accepted.map(\.type).sorted() != expected.sorted() || Set(accepted.map(\.id)).count != accepted.count
        else {
            return true
        }
        console.print(
            "\n\(console.style.painted("✗", .red)) the application got \(accepted.count) changes, not \(expected.count)"
        )
        return false
    }

    private func printOutcome(_ people: [DemonstrationPerson]) async throws {
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
                email: "\(name.lowercased())-\(tag)@privaterelay.appleid.com",
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
