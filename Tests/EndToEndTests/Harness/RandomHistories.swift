import AppleTokens
import AppleSimulator
import Basics
import Postgres
import StoreTestSupport
import Synchronization

/// Random histories, sent to a daemon as notifications and to the database as an application's sign-ins and sessions.
/// Afterwards it compares the database with the state that must follow from them.
final class RandomHistories: Sendable {
    /// The number of histories with sign-ins and sessions.
    private static let completeHistories = 300

    fileprivate struct Delivery {
        let prefix: String
        let facts: [Fact]
    }

    fileprivate struct Planned {
        let delivery: Int
        let fact: Fact
    }

    fileprivate struct State {
        var generator: SeededGenerator
        var deliveries: [Delivery] = []
        var planned: [Planned] = []
        var sent: [LoadRun.Item] = []
        var forged = 0
    }

    /// The time of the first fact, an hour ago.
    let start: WallTime
    private let apple: SimulatedApple
    private let forger: SimulatedApple
    private let state: Mutex<State>
    private let earlyFacts: [[Fact]]

    /// Histories that the seed determines.
    init(apple: SimulatedApple, seed: UInt64) throws {
        self.apple = apple
        forger = try SimulatedApple.generate()
        start = WallTime(seconds: WallTime.now().wholeSeconds - 3_600)
        var generator = SeededGenerator(seed: seed)
        earlyFacts = (0..<Self.completeHistories).map { _ in History(using: &generator).delivery(using: &generator) }
        state = Mutex(State(generator: generator))
        state.withLock { state in
            for facts in earlyFacts { state.plan(facts) }
            state.planned.shuffle(using: &state.generator)
        }
    }

    /// The next request: a genuine notification, a repeated one, a forged one whose effect would be visible, or one of an
    /// unknown type.
    func next() throws -> LoadRun.Item {
        enum Choice { case send(Planned, Delivery), forge(Delivery, Int), unknown(Int), again(LoadRun.Item) }
        let choice: Choice = state.withLock { state in
            switch Int.random(in: 0..<100, using: &state.generator) {
            case 0..<5 where !state.sent.isEmpty:
                return .again(state.sent[Int.random(in: 0..<state.sent.count, using: &state.generator)])
            case 5..<10:
                state.forged += 1
                let delivery = Int.random(in: 0..<state.deliveries.count, using: &state.generator)
                return .forge(state.deliveries[delivery], state.forged)
            case 10..<12:
                state.forged += 1
                return .unknown(state.forged)
            default:
                let planned = state.nextPlanned()
                return .send(planned, state.deliveries[planned.delivery])
            }
        }
        switch choice {
        case .again(let item):
            return item
        case .send(let planned, let delivery):
            let item = try item(event(planned.fact, delivery.prefix), signedBy: apple)
            state.withLock { $0.sent.append(item) }
            return item
        case .forge(let delivery, let number):
            var event = event(delivery.facts.first, delivery.prefix)
            event.type = "account-deleted"
            event.id = "forged \(number)"
            let token = try forger.token(claims: event.claims(issuer: apple.issuer), header: apple.header)
            return LoadRun.Item(id: event.id, body: SimulatedApple.body(token: token))
        case .unknown(let number):
            var event = event(nil, "unknown")
            event.id = "unknown \(number)"
            return try item(event, signedBy: apple)
        }
    }

    /// Applies sign-ins and sessions, one half before the notifications and the other half after.
    func applySignIns(_ half: Half, on connection: PostgresConnection) async throws {
        let (start, deliveries) = (start, earlyFacts)
        try await connection.withSession { session throws(PostgresError) in
            for (index, facts) in deliveries.enumerated() {
                for (position, fact) in facts.enumerated() where !fact.isNotification {
                    guard (index + position).isMultiple(of: 2) == (half == .before) else { continue }
                    try fact.record(prefix: Self.prefix(index), since: start, in: session)
                }
            }
        }
    }

    /// Before or after the notifications.
    enum Half { case before, after }

    /// The errors in the database.
    func findings(after outcome: LoadRun.Outcome, on connection: PostgresConnection) async throws -> [String] {
        let ledger = try await RecordedIDs.read(on: connection)
        var findings = ledger.findings(after: outcome)
        let observed = try await Observed.all(since: start, on: connection)
        for delivery in state.withLock({ $0.deliveries }) {
            let isComplete = delivery.prefix.hasPrefix("complete")
            let facts = delivery.facts.filter { fact in
                fact.isNotification ? ledger.notifications[delivery.prefix + fact.name] != nil : isComplete
            }
            let differences = (observed[delivery.prefix] ?? Observed(since: start)).differences(from: Model(facts))
            findings += differences.map { "\(delivery.prefix): \($0), after \(facts)" }
        }
        return findings
    }

    // MARK: - Private parts

    fileprivate static func prefix(_ delivery: Int) -> String {
        delivery < completeHistories ? "complete\(delivery)/" : "single\(delivery)/"
    }

    private func item(_ event: SimulatedEvent, signedBy apple: SimulatedApple) throws -> LoadRun.Item {
        LoadRun.Item(id: event.id, body: SimulatedApple.body(token: try apple.token(for: event)))
    }

    private func event(_ fact: Fact?, _ prefix: String) -> SimulatedEvent {
        let isNotification = fact?.isNotification ?? false
        return SimulatedEvent(
            type: isNotification ? fact?.appleType ?? "" : "unknown-type",
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

extension RandomHistories.State {
    fileprivate mutating func plan(_ facts: [Fact]) {
        let delivery = RandomHistories.Delivery(prefix: RandomHistories.prefix(deliveries.count), facts: facts)
        planned += facts.filter(\.isNotification).map { RandomHistories.Planned(delivery: deliveries.count, fact: $0) }
        deliveries.append(delivery)
    }

    /// A fact of a complete history in one of eight cases, so that these are spread over the run; else the fact of a new
    /// history without sign-ins.
    fileprivate mutating func nextPlanned() -> RandomHistories.Planned {
        if !planned.isEmpty, Int.random(in: 0..<8, using: &generator) == 0 { return planned.removeLast() }
        while true {
            let facts = History(using: &generator).delivery(using: &generator).filter(\.isNotification)
            guard let fact = facts.first else { continue }
            let delivery = deliveries.count
            deliveries.append(RandomHistories.Delivery(prefix: RandomHistories.prefix(delivery), facts: [fact]))
            return RandomHistories.Planned(delivery: delivery, fact: fact)
        }
    }
}
