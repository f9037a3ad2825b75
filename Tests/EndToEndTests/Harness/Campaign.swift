import AppleTokens
import AppleSimulator
import Postgres
import StoreTestSupport
import Synchronization

/// Random histories, told to a daemon as notifications and to the database as an application does; and afterwards the
/// judgement whether what the database holds is what must follow from them.
final class Campaign: Sendable {
    /// How many of the histories have sign-ins and sessions in them.
    private static let livedHistories = 300

    fileprivate struct Telling {
        let prefix: String
        let facts: [Fact]
    }

    fileprivate struct Planned {
        let telling: Int
        let fact: Fact
    }

    fileprivate struct State {
        var generator: SeededGenerator
        var tellings: [Telling] = []
        var planned: [Planned] = []
        var sent: [Load.Item] = []
        var forged = 0
    }

    /// Where it begins, in the past of the tests' present.
    let start: WallTime
    private let apple: SimulatedApple
    private let stranger: SimulatedApple
    private let state: Mutex<State>
    private let earlyTellings: [[Fact]]

    /// A campaign that the seed decides.
    init(apple: SimulatedApple, seed: UInt64) throws {
        self.apple = apple
        stranger = try SimulatedApple.generate()
        start = WallTime(seconds: WallTime.now().wholeSeconds - 3_600)
        var generator = SeededGenerator(seed: seed)
        earlyTellings = (0..<Self.livedHistories).map { _ in History(using: &generator).telling(using: &generator) }
        state = Mutex(State(generator: generator))
        state.withLock { state in
            for facts in earlyTellings { state.plan(facts) }
            state.planned.shuffle(using: &state.generator)
        }
    }

    /// The next request of the load. Beside genuine notifications there are repeated ones, forged ones that would be seen
    /// if they had an effect, and some of a type that nobody knows.
    func next() throws -> Load.Item {
        enum Choice { case tell(Planned, Telling), forge(Telling, Int), unknown(Int), again(Load.Item) }
        let choice: Choice = state.withLock { state in
            switch Int.random(in: 0..<100, using: &state.generator) {
            case 0..<5 where !state.sent.isEmpty:
                return .again(state.sent[Int.random(in: 0..<state.sent.count, using: &state.generator)])
            case 5..<10:
                state.forged += 1
                let telling = Int.random(in: 0..<state.tellings.count, using: &state.generator)
                return .forge(state.tellings[telling], state.forged)
            case 10..<12:
                state.forged += 1
                return .unknown(state.forged)
            default:
                let planned = state.nextPlanned()
                return .tell(planned, state.tellings[planned.telling])
            }
        }
        switch choice {
        case .again(let item):
            return item
        case .tell(let planned, let telling):
            let item = try item(event(planned.fact, telling.prefix), signedBy: apple)
            state.withLock { $0.sent.append(item) }
            return item
        case .forge(let telling, let number):
            var event = event(telling.facts.first, telling.prefix)
            event.type = "account-deleted"
            event.id = "forged \(number)"
            let token = try stranger.token(claims: event.claims(issuer: apple.issuer), header: apple.header)
            return Load.Item(id: event.id, body: SimulatedApple.body(token: token))
        case .unknown(let number):
            var event = event(nil, "unknown")
            event.id = "unknown \(number)"
            return try item(event, signedBy: apple)
        }
    }

    /// Tells the sign-ins and sessions: some of them before the notifications, the others after.
    func tellApplication(_ half: Half, on connection: PostgresConnection) async throws {
        let (start, tellings) = (start, earlyTellings)
        try await connection.withSession { session throws(PostgresError) in
            for (index, facts) in tellings.enumerated() {
                for (position, fact) in facts.enumerated() where !fact.isNotification {
                    guard (index + position).isMultiple(of: 2) == (half == .before) else { continue }
                    try fact.tell(prefix: Self.prefix(index), since: start, in: session)
                }
            }
        }
    }

    /// Before or after the notifications.
    enum Half { case before, after }

    /// What is wrong in the database; empty when nothing is.
    func findings(after outcome: Load.Outcome, on connection: PostgresConnection) async throws -> [String] {
        let ledger = try await RecordedIDs.read(on: connection)
        var findings = ledger.findings(after: outcome)
        let observed = try await Observed.all(since: start, on: connection)
        for telling in state.withLock({ $0.tellings }) {
            let isLived = telling.prefix.hasPrefix("lived")
            let facts = telling.facts.filter { fact in
                fact.isNotification ? ledger.notifications[telling.prefix + fact.name] != nil : isLived
            }
            let differences = (observed[telling.prefix] ?? Observed(since: start)).differences(from: Model(facts))
            findings += differences.map { "\(telling.prefix): \($0), after \(facts)" }
        }
        return findings
    }

    // MARK: - Private parts

    fileprivate static func prefix(_ telling: Int) -> String {
        telling < livedHistories ? "lived\(telling)/" : "told\(telling)/"
    }

    private func item(_ event: SimulatedEvent, signedBy apple: SimulatedApple) throws -> Load.Item {
        Load.Item(id: event.id, body: SimulatedApple.body(token: try apple.token(for: event)))
    }

    private func event(_ fact: Fact?, _ prefix: String) -> SimulatedEvent {
        let isNotification = fact?.isNotification ?? false
        return SimulatedEvent(
            type: isNotification ? fact?.appleType ?? "" : "unheard-of",
            sub: prefix + (fact?.sub ?? "/nobody"),
            app: fact?.app ?? "com.example.one",
            email: isNotification ? fact?.email : nil,
            isPrivateEmail: isNotification ? fact?.emailIsPrivate : nil,
            eventTime: (fact?.time(since: start) ?? start).wholeMilliseconds,
            issuedAt: WallTime.now().wholeSeconds,
            id: prefix + (fact?.name ?? "")
        )
    }
}

extension Campaign.State {
    fileprivate mutating func plan(_ facts: [Fact]) {
        let telling = Campaign.Telling(prefix: Campaign.prefix(tellings.count), facts: facts)
        planned += facts.filter(\.isNotification).map { Campaign.Planned(telling: tellings.count, fact: $0) }
        tellings.append(telling)
    }

    /// Of a history from the beginning now and then, so that these are told all along; else of one that nobody lived
    /// through but Apple.
    fileprivate mutating func nextPlanned() -> Campaign.Planned {
        if !planned.isEmpty, Int.random(in: 0..<8, using: &generator) == 0 { return planned.removeLast() }
        while true {
            let facts = History(using: &generator).telling(using: &generator).filter(\.isNotification)
            guard let fact = facts.first else { continue }
            let telling = tellings.count
            tellings.append(Campaign.Telling(prefix: Campaign.prefix(telling), facts: [fact]))
            return Campaign.Planned(telling: telling, fact: fact)
        }
    }
}
