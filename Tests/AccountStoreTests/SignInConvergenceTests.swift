import AccountStore
import AppleTokens
import Basics
import Glibc
import Postgres
import StoreTestSupport
import TestSupport
import Testing

/// A step in the history of a person in one app group.
private enum Step: Equatable {
    /// The reservation of a sign-in; one of the same number is the same request.
    case reserve(SignIn)
    /// Its settlement, if it was reserved.
    case settle(SignIn)
    case revoke(minute: Int, id: Int)
    case delete(minute: Int, id: Int)

    struct SignIn: Hashable {
        let number: Int
        let minute: Int
        let client: String
        let hasSession: Bool
        let hasToken: Bool
        let hasName: Bool
    }

    /// A few steps, some of them repeated. A settlement follows its reservation at any distance.
    static func history(using generator: inout SeededGenerator) -> [Step] {
        var steps: [Step] = []
        for number in 0..<Int.random(in: 2...5, using: &generator) {
            let minute = Int.random(in: 0..<5, using: &generator)
            let place = Int.random(in: 0...steps.count, using: &generator)
            switch Int.random(in: 0..<16, using: &generator) {
            case 0: steps.insert(.delete(minute: minute, id: number), at: place)
            case 1...5: steps.insert(.revoke(minute: minute, id: number), at: place)
            default:
                let signIn = SignIn(
                    number: number,
                    minute: minute,
                    client: Bool.random(using: &generator) ? "com.example.one" : "com.example.web",
                    hasSession: Bool.random(using: &generator),
                    hasToken: Bool.random(using: &generator),
                    hasName: Bool.random(using: &generator)
                )
                steps.insert(.reserve(signIn), at: place)
                steps.insert(.settle(signIn), at: Int.random(in: place + 1...steps.count, using: &generator))
            }
        }
        return steps + steps.filter { _ in Int.random(in: 0..<4, using: &generator) == 0 }.shuffled(using: &generator)
    }
}

/// What must be in the database after the steps of one person, each applied after the one before.
private struct Expectation: Equatable {
    var isDeleted = false
    var revokedAt: Int?
    var authorizedAt: Int?
    /// Numbers of the sign-ins that are reserved, and that were settled.
    private var reserved: Set<Int> = []
    private(set) var settled: [Step.SignIn] = []
    /// By client: the minute of the latest settled sign-in with a token.
    var tokens: [String: Int] = [:]
    var name: Int?

    private func accepts(_ signIn: Step.SignIn) -> Bool {
        !isDeleted && (revokedAt.map { $0 < signIn.minute } ?? true)
    }

    mutating func apply(_ step: Step) {
        switch step {
        case .reserve(let signIn):
            if accepts(signIn), !settled.contains(signIn) { reserved.insert(signIn.number) }
        case .settle(let signIn):
            guard reserved.remove(signIn.number) != nil, accepts(signIn) else { return }
            settled.append(signIn)
            authorizedAt = max(authorizedAt ?? .min, signIn.minute)
            if signIn.hasToken { tokens[signIn.client] = max(tokens[signIn.client] ?? .min, signIn.minute) }
            if signIn.hasName { name = max(name ?? .min, signIn.minute) }
        case .revoke(let minute, _): revokedAt = max(revokedAt ?? .min, minute)
        case .delete: isDeleted = true
        }
    }

    /// After upkeep, in the words of the query ``SignInConvergenceTests/observed``.
    var description: String {
        var state = authorizedAt == nil ? "unknown" : "authorized"
        if let revokedAt, revokedAt >= authorizedAt ?? .min { state = "revoked" }
        if isDeleted { state = "deleted" }
        func isInForce(_ minute: Int) -> Bool { revokedAt.map { $0 < minute } ?? true }
        let sessions = settled.filter(\.hasSession).map { signIn in
            "\(signIn.number):\(!isDeleted && isInForce(signIn.minute) ? "live" : "ended")"
        }
        let tokens = tokens.filter { !isDeleted && isInForce($0.value) }.map { "\($0.key.suffix(3)):\($0.value)" }
        let name = name.flatMap { !isDeleted && isInForce($0) ? String($0) : nil } ?? "-"
        return [
            state, authorizedAt.map(String.init) ?? "-", sessions.sorted().joined(separator: ","),
            tokens.sorted().joined(separator: ","), name,
        ].joined(separator: " ")
    }
}

@Suite("Convergence of sign-ins and notifications", .timeLimit(.minutes(30)))
struct SignInConvergenceTests {
    private static let isLong = getenv("SIWAD_FAULTS").map { String(cString: $0) } == "long"
    /// Histories of each part.
    private static let histories = isLong ? 12_500 : 120
    /// Histories that take their steps together. Fewer than reservations last for.
    private static let group = 250

    @Test(
        "Any order and split of sign-ins, revocations and deletions ends in the state of the model.",
        arguments: 0..<8
    )
    func converges(part: Int) async throws {
        try await TestDatabase.with(.siwa) { database in
            let connection = try await PostgresConnection.connect(database.settings)
            let seed = UInt64(part) &* 7_919 &+ 20_261_125
            var generator = SeededGenerator(seed: seed)
            try await connection.withSession { session throws(PostgresError) in
                try session.execute(script: Notifications.writerSettings)
                try Notifications.ensurePartitions(from: Ledger.time(0), through: Ledger.time(10), in: session)
            }
            var done = 0
            while done < Self.histories {
                var histories: [String: [Step]] = [:]
                for index in 0..<min(Self.group, Self.histories - done) {
                    histories["\(done + index)"] = Step.history(using: &generator)
                }
                done += histories.count
                try await Self.perform(histories, on: connection)
                _ = try await Store.maintain(.tokens, now: Store.now, on: connection)
                let observed = try await Self.observed(on: connection)
                for (sub, steps) in histories {
                    var expected = Expectation()
                    for step in steps { expected.apply(step) }
                    #expect(observed[sub] ?? "unknown -   -" == expected.description, "seed \(seed), \(sub): \(steps)")
                }
            }
            await connection.close()
        }
    }

    /// Performs the first steps of all histories, then the second ones, and so on.
    private static func perform(_ histories: [String: [Step]], on connection: PostgresConnection) async throws {
        let people = histories.sorted { $0.key < $1.key }
        for index in 0..<(people.map(\.value.count).max() ?? 0) {
            try await connection.withSession(deadline: .seconds(60)) { session throws(PostgresError) in
                var batch: [ReceivedNotification] = []
                for (sub, steps) in people where index < steps.count {
                    switch steps[index] {
                    case .reserve(let signIn) where !isWhole(signIn):
                        _ = try SignIns.reserve(Self.request(signIn, of: sub), in: session)
                    case .reserve: break
                    case .settle(let signIn): try settle(signIn, of: sub, in: session)
                    case .revoke(let minute, let id):
                        let time = Ledger.time(minute)
                        batch.append(.sample("consent-revoked", sub: sub, at: time, id: "\(sub)/\(id)"))
                    case .delete(let minute, let id):
                        let time = Ledger.time(minute)
                        batch.append(.sample("account-deleted", sub: sub, at: time, id: "\(sub)/\(id)"))
                    }
                }
                if !batch.isEmpty { _ = try Notifications.record(batch, source: .endpoint, in: session) }
            }
        }
    }

    private static func request(_ signIn: Step.SignIn, of sub: String) -> NewSignIn {
        .sample(
            "\(sub)/\(signIn.number)",
            of: sub,
            at: Ledger.time(signIn.minute),
            client: signIn.client,
            session: signIn.hasSession ? "\(sub)/\(signIn.number)" : nil
        )
    }

    /// Settles the sign-in if it is reserved and not settled.
    private static func settle(_ signIn: Step.SignIn, of sub: String, in session: borrowing Session)
        throws(PostgresError)
    {
        let request = request(signIn, of: sub)
        var settlement = Settlement.sample(
            0,
            of: sub,
            at: Ledger.time(signIn.minute),
            name: signIn.hasName ? .init(given: String(signIn.minute), family: nil) : nil,
            refresh: signIn.hasToken ? .stored : .none,
            session: request.sessionID
        )
        try session.execute(script: "BEGIN")
        if isWhole(signIn) {
            let answers = try Store.settleTogether([settlement], unreserved: [request], in: session)
            if answers[0] == nil { _ = try SignIns.reserve(request, in: session) }
        }
        let rows = try session.execute(reservation, request.presentedDigest)
        guard !rows.isEmpty else { return try session.execute(script: "COMMIT") }
        settlement.signInID = try rows.int64(0, 0)
        // Every second one as the only one of a batch, where that settles it.
        var answer: SettledSignIn?
        if signIn.number.isMultiple(of: 2) { answer = try Store.settleTogether([settlement], in: session)[0] }
        if answer == nil { _ = try Store.settle(settlement, in: session) }
        try session.execute(script: "COMMIT")
    }

    /// Whether the sign-in is not reserved first, because it has no code.
    private static func isWhole(_ signIn: Step.SignIn) -> Bool {
        !signIn.hasToken && signIn.number.isMultiple(of: 3)
    }

    private static let reservation = Statement(
        "SELECT sign_in_id FROM siwa.sign_ins WHERE presented_digest = $1 AND settled_at IS NULL"
    )

    /// State, `authorized_at`, sessions, tokens and name of each person.
    private static func observed(on connection: PostgresConnection) async throws -> [String: String] {
        let rows = try await connection.withSession(deadline: .seconds(60)) { session throws(PostgresError) in
            try session.execute(
                once: """
                    SELECT s.sub, concat_ws(
                        ' ', s.state, coalesce(extract(epoch FROM s.authorized_at - $1)::integer / 60 || '', '-'),
                        (
                            SELECT coalesce(string_agg(
                                split_part(v.session_id, '/', 2) || ':' || CASE WHEN v.ended_at IS NULL THEN 'live' ELSE 'ended' END,
                                ',' ORDER BY v.session_id
                            ), '')
                            FROM siwa.sessions AS v WHERE v.account_id = s.account_id
                        ),
                        (
                            SELECT coalesce(string_agg(
                                right(t.client_id, 3) || ':' || extract(epoch FROM t.obtained_at - $1)::integer / 60,
                                ',' ORDER BY right(t.client_id, 3)
                            ), '')
                            FROM siwa.refresh_tokens AS t WHERE t.account_id = s.account_id
                        ),
                        coalesce((SELECT n.given FROM siwa.account_names AS n WHERE n.account_id = s.account_id), '-')
                    )
                    FROM siwa.account_states AS s
                    """,
                Ledger.start
            ).decode { (sub: String, text: String) in (sub, text) }
        }
        return Dictionary(uniqueKeysWithValues: rows)
    }
}
