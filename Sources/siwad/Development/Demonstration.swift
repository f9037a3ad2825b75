import AccountStore
import AppleClient
import AppleSimulator
import AppleTokens
import NotificationServer
import Postgres
import Terminal

/// The demonstration of `siwad dev`: people sign in, the simulated Apple sends every type of event to the real endpoint, and
/// the database is checked after each event.
struct Demonstration: Sendable {
    let apple: SimulatedApple
    /// One or two groups of one team.
    let groups: [AudienceMap.Group]
    let pool: ConnectionPool
    let console: Console

    /// - Returns: true if every event had the expected effect.
    func play(against url: String, over loops: EventLoops) async throws -> Bool {
        let sender = try NotificationSender(url: url, version: Version.current, eventLoopGroup: loops.group)
        let now = WallTime.now()
        let people = DemonstrationPerson.all(groups: groups)
        let apps = groups.map(\.app.rawValue).joined(separator: " and ")
        console.print("Four people sign in to \(apps), each with a private address:")
        for person in people { try await signIn(person, at: now - .seconds(120)) }
        console.print(lines: table(of: people).lines(style: console.style, indentation: 2))
        var isAsExpected = true
        for step in DemonstrationStep.all(people: people, groups: groups, now: now) {
            let status = try await send(step, with: sender)
            let page = try await page(of: step.person)
            let isRight = status == step.expectedStatus && step.hasEffect(page)
            isAsExpected = isAsExpected && isRight
            report(step, status: status, isRight: isRight, page: page)
        }
        try await printOutcome(people)
        return isAsExpected
    }

    private func signIn(_ person: DemonstrationPerson, at time: WallTime) async throws {
        let groups = groups
        try await pool.transaction { session throws(PostgresError) in
            for (group, id) in zip(groups, person.sessions) {
                let client = group.clients[0]
                try Applications.recordSignIn(
                    client: client,
                    subject: person.subject,
                    email: person.email,
                    emailIsPrivate: true,
                    signedInAt: time,
                    in: session
                )
                try Applications.openSession(
                    client: client,
                    subject: person.subject,
                    session: id,
                    createdAt: time,
                    in: session
                )
            }
        }
    }

    private func table(of people: [DemonstrationPerson]) -> Table {
        var table = Table([
            .init("WHO"), .init("SUB", cut: .middle, minimumWidth: 20), .init("ADDRESS", cut: .end, minimumWidth: 20),
        ])
        for person in people {
            table.append([
                Table.Cell(person.name), Table.Cell(person.subject.rawValue), Table.Cell(person.email),
            ])
        }
        return table
    }

    private func send(_ step: DemonstrationStep, with sender: NotificationSender) async throws -> Int {
        var token = try apple.token(for: step.event)
        if step.isForged { token = Self.forged(token) }
        let body = Array(SimulatedApple.body(token: token).utf8)
        let summary = try await sender.send(count: 1, body: { _ in body })
        guard let status = summary.statuses.first?.key else {
            throw CommandFailure(
                .unavailable,
                "the endpoint did not respond: \(summary.firstFailure ?? "unknown cause")"
            )
        }
        return status
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
        let style = console.style
        let mark = isRight ? style.painted("✓", .green) : style.painted("✗", .red)
        console.print()
        console.print("\(mark) \(step.title)")
        let answer = status == 200 ? "200 after the commit" : "\(status)"
        console.print("    POST \(step.event.type)\(step.isForged ? ", forged" : "") for \(step.event.app): \(answer)")
        if isRight {
            console.print("    \(step.expectation)")
        } else {
            console.print("    expected \(step.expectedStatus) and: \(step.expectation); found:")
            console.print(lines: page.lines(style: style).map { "    " + $0 })
        }
    }

    private func printOutcome(_ people: [DemonstrationPerson]) async throws {
        var states: [AccountState] = []
        var sessions: [AccountSession] = []
        for person in people {
            let page = try await page(of: person)
            states += page.states
            sessions += page.sessions
        }
        console.print()
        console.print(console.style.painted("Accounts afterwards (siwa.account_states)", .bold))
        console.print(lines: AccountListings.states(states).table.lines(style: console.style, indentation: 2))
        console.print()
        console.print(console.style.painted("Sessions afterwards (siwa.sessions)", .bold))
        console.print(lines: AccountListings.sessions(sessions).table.lines(style: console.style, indentation: 2))
        console.print()
    }
}

/// A person of the demonstration. Each run creates its own people.
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

/// A notification of the demonstration and its expected effect.
struct DemonstrationStep: Sendable {
    let title: String
    let person: DemonstrationPerson
    let event: SimulatedEvent
    var isForged = false
    var expectedStatus = 200
    let expectation: String
    /// True if the database shows the effect.
    let hasEffect: @Sendable (AccountPage) -> Bool

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
            title: "A sender without Apple's key claims that Dan's account is deleted.",
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
