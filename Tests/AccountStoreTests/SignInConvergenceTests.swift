import AccountStore
import AppleTokens
import Basics
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
    /// The end of the exchange of its code in the background.
    case finish(SignIn, isStored: Bool)
    case revoke(minute: Int, id: Int)
    case delete(minute: Int, id: Int)

    /// When the refresh token of a sign-in comes.
    enum Token: CaseIterable {
        /// There is no code.
        case never
        case beforeSettlement
        /// The code is traded in the background.
        case later
    }

    struct SignIn: Hashable {
        let number: Int
        let minute: Int
        let client: String
        let hasSession: Bool
        let token: Token
        let hasName: Bool
    }

    var isNotification: Bool {
        switch self {
        case .reserve, .settle, .finish: false
        case .revoke, .delete: true
        }
    }

    /// A few steps, some of them repeated. A settlement follows its reservation at any distance, and up to two ends of an
    /// exchange follow the settlement.
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
                    token: Token.allCases.randomElement(using: &generator) ?? .never,
                    hasName: Bool.random(using: &generator)
                )
                steps.insert(.reserve(signIn), at: place)
                let settlement = Int.random(in: place + 1...steps.count, using: &generator)
                steps.insert(.settle(signIn), at: settlement)
                guard signIn.token == .later else { continue }
                for _ in 0..<Int.random(in: 0...2, using: &generator) {
                    let finish = Step.finish(signIn, isStored: Int.random(in: 0..<3, using: &generator) > 0)
                    steps.insert(finish, at: Int.random(in: settlement + 1...steps.count, using: &generator))
                }
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
    /// By the number of a settled sign-in with a code: what became of its refresh token.
    private var refresh: [Int: RefreshOutcome] = [:]
    /// By client: the minute of the latest sign-in whose token was stored.
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
            if signIn.hasName { name = max(name ?? .min, signIn.minute) }
            switch signIn.token {
            case .never: break
            case .beforeSettlement: store(signIn)
            case .later: refresh[signIn.number] = .pending
            }
        case .finish(let signIn, let isStored):
            // Only a token replaces what an earlier exchange found.
            let known = refresh[signIn.number]
            guard known == .pending || (isStored && known == .lost) else { return }
            if isStored, accepts(signIn) { store(signIn) } else { refresh[signIn.number] = .lost }
        case .revoke(let minute, _): revokedAt = max(revokedAt ?? .min, minute)
        case .delete: isDeleted = true
        }
    }

    private mutating func store(_ signIn: Step.SignIn) {
        refresh[signIn.number] = .stored
        tokens[signIn.client] = max(tokens[signIn.client] ?? .min, signIn.minute)
    }

    /// After maintenance, in the words of the query ``SignInConvergenceTests/observed``.
    var description: String {
        var state = authorizedAt == nil ? "unknown" : "authorized"
        if let revokedAt, revokedAt >= authorizedAt ?? .min { state = "revoked" }
        if isDeleted { state = "deleted" }
        func isInForce(_ minute: Int) -> Bool { revokedAt.map { $0 < minute } ?? true }
        let sessions = settled.filter(\.hasSession).map { signIn in
            "\(signIn.number):\(!isDeleted && isInForce(signIn.minute) ? "live" : "ended")"
        }
        let tokens = tokens.filter { !isDeleted && isInForce($0.value) }.map { "\($0.key.suffix(3)):\($0.value)" }
        let refresh = refresh.map { "\($0.key):\($0.value.rawValue)" }
        let name = name.flatMap { !isDeleted && isInForce($0) ? String($0) : nil } ?? "-"
        return [
            state, authorizedAt.map(String.init) ?? "-", sessions.sorted().joined(separator: ","),
            tokens.sorted().joined(separator: ","), refresh.sorted().joined(separator: ","), name,
        ].joined(separator: " ")
    }
}

@Suite("Convergence of sign-ins and notifications", .timeLimit(.minutes(30)))
struct SignInConvergenceTests {
    /// Histories of each part.
    private static let histories = LongVariants.areWanted ? 12_500 : 120
    /// Histories that take their steps together. Fewer than reservations last for.
    private static let group = 250

    @Test(
        "Any order and split of sign-ins, exchanges, revocations and deletions ends in the state of the model.",
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
                try await Self.perform(Self.rounds(of: histories, using: &generator), on: connection)
                _ = try await Store.maintain(.tokens, now: Store.now, on: connection)
                let observed = try await Self.observed(Array(histories.keys), on: connection)
                for (sub, steps) in histories {
                    var expected = Expectation()
                    for step in steps { expected.apply(step) }
                    let unknown = Expectation().description
                    #expect(observed[sub] ?? unknown == expected.description, "seed \(seed), \(sub): \(steps)")
                }
            }
            await connection.close()
        }
    }

    /// A sign-in of a person.
    private typealias Attempt = (sub: String, signIn: Step.SignIn)

    /// What is performed together: one step of each person, or several of their notifications in a row.
    private struct Round {
        var reservations: [Attempt] = []
        var settlements: [Attempt] = []
        var exchanges: [(attempt: Attempt, isStored: Bool)] = []
        var notifications: [ReceivedNotification] = []

        mutating func add(_ step: Step, of sub: String) {
            switch step {
            case .reserve(let signIn): reservations.append((sub, signIn))
            case .settle(let signIn): settlements.append((sub, signIn))
            case .finish(let signIn, let isStored): exchanges.append(((sub, signIn), isStored))
            case .revoke(let minute, let id):
                let time = Ledger.time(minute)
                notifications.append(.sample("consent-revoked", sub: sub, at: time, id: "\(sub)/\(id)"))
            case .delete(let minute, let id):
                let time = Ledger.time(minute)
                notifications.append(.sample("account-deleted", sub: sub, at: time, id: "\(sub)/\(id)"))
            }
        }
    }

    /// The first steps of all histories, then the next ones, and so on. Consecutive notifications of a person share a batch at
    /// random.
    private static func rounds(of histories: [String: [Step]], using generator: inout SeededGenerator) -> [Round] {
        var people = histories.sorted { $0.key < $1.key }.map { (sub: $0.key, steps: $0.value[...]) }
        var rounds: [Round] = []
        while people.contains(where: { !$0.steps.isEmpty }) {
            var round = Round()
            for index in people.indices {
                guard let step = people[index].steps.popFirst() else { continue }
                round.add(step, of: people[index].sub)
                while step.isNotification, let next = people[index].steps.first, next.isNotification,
                    Bool.random(using: &generator)
                {
                    people[index].steps.removeFirst()
                    round.add(next, of: people[index].sub)
                }
            }
            rounds.append(round)
        }
        return rounds
    }

    private static func perform(_ rounds: [Round], on connection: PostgresConnection) async throws {
        for round in rounds {
            try await connection.withSession(deadline: .seconds(60)) { session throws(PostgresError) in
                for attempt in round.reservations where !isWhole(attempt.signIn) {
                    _ = try SignIns.reserve(Self.request(attempt), in: session)
                }
                try settle(round.settlements, in: session)
                for (attempt, isStored) in round.exchanges { try finish(attempt, isStored: isStored, in: session) }
                guard !round.notifications.isEmpty else { return }
                _ = try Notifications.record(round.notifications, source: .endpoint, in: session)
            }
        }
    }

    private static func request(_ attempt: Attempt) -> NewSignIn {
        let (sub, signIn) = attempt
        let name = "\(sub)/\(signIn.number)"
        return .sample(
            name,
            of: sub,
            at: Ledger.time(signIn.minute),
            code: signIn.token == .never ? nil : name,
            client: signIn.client,
            session: signIn.hasSession ? name : nil
        )
    }

    private static func settlement(_ signInID: Int64, _ attempt: Attempt) -> Settlement {
        let signIn = attempt.signIn
        let time = Ledger.time(signIn.minute)
        let refresh: RefreshState =
            switch signIn.token {
            case .never: .none
            case .beforeSettlement: .stored
            case .later: .pending(sealedCode: [1], due: time)
            }
        return .sample(
            signInID,
            of: attempt.sub,
            at: time,
            name: signIn.hasName ? .init(given: String(signIn.minute), family: nil) : nil,
            refresh: refresh,
            session: request(attempt).sessionID
        )
    }

    /// Settles sign-ins that are not settled. One statement settles every second one that is reserved, and the ones that are not
    /// reserved first; what it leaves, and the others, are settled one by one.
    private static func settle(_ attempts: [Attempt], in session: borrowing Session) throws(PostgresError) {
        var together: [(attempt: Attempt, settlement: Settlement, unreserved: NewSignIn?)] = []
        var alone: [Attempt] = []
        for attempt in attempts {
            let request = request(attempt)
            if isWhole(attempt.signIn) {
                together.append((attempt, settlement(0, attempt), request))
            } else if attempt.signIn.number.isMultiple(of: 2), let id = try reservedID(of: request, in: session) {
                together.append((attempt, settlement(id, attempt), nil))
            } else {
                alone.append(attempt)
            }
        }
        try session.execute(script: "BEGIN")
        let answers = try Store.settleTogether(
            together.map(\.settlement),
            unreserved: together.map(\.unreserved),
            in: session
        )
        try session.execute(script: "COMMIT")
        for (one, answer) in zip(together, answers) where answer == nil { alone.append(one.attempt) }
        for attempt in alone {
            let request = request(attempt)
            try session.execute(script: "BEGIN")
            if isWhole(attempt.signIn) { _ = try SignIns.reserve(request, in: session) }
            if let id = try reservedID(of: request, in: session) {
                _ = try Store.settle(settlement(id, attempt), in: session)
            }
            try session.execute(script: "COMMIT")
        }
    }

    /// Whether the sign-in is not reserved first, because it has no code.
    private static func isWhole(_ signIn: Step.SignIn) -> Bool {
        signIn.token == .never && signIn.number.isMultiple(of: 3)
    }

    /// The sign-in if it is reserved and not settled.
    private static func reservedID(of request: NewSignIn, in session: borrowing Session) throws(PostgresError)
        -> Int64?
    {
        let rows = try session.execute(reservation, request.presentedDigest)
        guard !rows.isEmpty else { return nil }
        return try rows.int64(0, 0)
    }

    /// Ends its exchange, settled or not.
    private static func finish(_ attempt: Attempt, isStored: Bool, in session: borrowing Session)
        throws(PostgresError)
    {
        let rows = try session.execute(anySignIn, request(attempt).presentedDigest)
        guard !rows.isEmpty else { return }
        try SignIns.finishExchange(rows.int64(0, 0), isStored ? .stored(Store.token) : .lost, in: session)
    }

    private static let reservation = Statement(
        "SELECT sign_in_id FROM siwa.sign_ins WHERE presented_digest = $1 AND settled_at IS NULL"
    )
    private static let anySignIn = Statement("SELECT sign_in_id FROM siwa.sign_ins WHERE presented_digest = $1")

    /// State, `authorized_at`, sessions, tokens, outcomes of codes and name of each of these people.
    private static func observed(_ subs: [String], on connection: PostgresConnection) async throws -> [String: String] {
        let rows = try await connection.withSession(deadline: .seconds(60)) { session throws(PostgresError) in
            let statement = Statement(
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
                        coalesce(o.outcomes, ''),
                        coalesce((SELECT n.given FROM siwa.account_names AS n WHERE n.account_id = s.account_id), '-')
                    )
                    FROM siwa.account_states AS s
                    LEFT JOIN (
                        SELECT i.account_id, string_agg(
                            split_part(convert_from(rtrim(i.presented_digest::bytea, '\\x00'), 'UTF8'), '/', 2)
                                || ':' || i.refresh,
                            ',' ORDER BY i.presented_digest
                        ) AS outcomes
                        FROM siwa.sign_ins AS i
                        WHERE i.code_digest IS NOT NULL
                        GROUP BY i.account_id
                    ) AS o USING (account_id)
                    WHERE s.sub = ANY ($2::text[])
                    """
            )
            let binds = Binds {
                $0.append(Ledger.start)
                $0.append(array: subs)
            }
            return try session.execute(statement, binds).decode { (sub: String, text: String) in (sub, text) }
        }
        return Dictionary(uniqueKeysWithValues: rows)
    }
}
