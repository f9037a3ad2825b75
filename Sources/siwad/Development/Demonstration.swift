import AccountStore
import AppleClient
import AppleTokens
import AppleSimulator
import NotificationServer
import Postgres
import Terminal

/// What `siwad dev` shows: people sign in, Apple sends every type of event about them through the real endpoint, and the
/// database is looked at after each.
struct Demonstration: Sendable {
    /// The Apple that signs.
    let apple: SimulatedApple
    /// The groups of one team, of which the first two are used.
    let groups: [AudienceMap.Group]
    /// The database that the endpoint writes to.
    let pool: ConnectionPool
    /// Where the steps are printed.
    let console: Console

    /// Plays it.
    /// - Returns: whether everything had the effect that it should have.
    func play(against url: String, over loops: EventLoops) async throws -> Bool {
        let sender = try NotificationSender(url: url, version: Version.current, eventLoopGroup: loops.group)
        let now = WallTime.now()
        let people = DemonstrationPerson.all(groups: groups)
        let apps = groups.map(\.app.rawValue).joined(separator: " and ")
        console.print("Somebody signs in, to \(apps), with a private address:")
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
                "the endpoint gave no answer: \(summary.firstFailure ?? "unknown cause")"
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
