import NIOCore
import Synchronization

/// Requests from many connections at once, and what became of each notification in them.
final class Load: Sendable {
    /// A notification on its way.
    struct Item: Sendable {
        /// Its `jti`.
        let id: String
        let body: String
    }

    /// What clients saw.
    struct Outcome: Sendable {
        /// Promised to be kept.
        var acknowledged: Set<String> = []
        /// Refused for good, by status.
        var refused: [String: Int] = [:]
        /// How often one was asked to come back later, by reason.
        var unavailable: [String: Int] = [:]
        /// How often a request was broken off without an answer, by what the client noticed.
        var unanswered: [String: Int] = [:]
        /// Every notification that was sent at all.
        var sent: Set<String> = []

        /// How often a load balancer found nobody at one address and took another.
        var hidden = 0
        /// How many answers of any kind there were.
        var answers = 0
    }

    fileprivate struct State {
        var targets: [String]
        var outcome = Outcome()
        var again: [Item] = []
        var isStopping = false
        var generator: SystemRandomNumberGenerator = .init()
    }

    private let state: Mutex<State>
    private let isBalancing: Bool
    private let next: @Sendable () throws -> Item?

    /// - Parameters:
    ///   - balancing: does what a load balancer does: each request has a connection of its own, and goes to another
    ///     target when one doesn't take the connection.
    ///   - next: makes the next notification; nil when there are no more.
    init(to targets: [String], balancing: Bool = false, next: @escaping @Sendable () throws -> Item?) {
        state = Mutex(State(targets: targets))
        self.isBalancing = balancing
        self.next = next
    }

    /// What clients saw until now.
    var outcome: Outcome { state.withLock { $0.outcome } }

    /// How many answers there were until now.
    var answers: Int { state.withLock { $0.outcome.answers } }

    /// How many notifications were acknowledged until now.
    var acknowledged: Int { state.withLock { $0.outcome.acknowledged.count } }

    /// Where requests go from here on, each to any of these.
    func turn(to targets: [String]) {
        state.withLock { $0.targets = targets }
    }

    /// Sends nothing new.
    func stop() {
        state.withLock { $0.isStopping = true }
    }

    /// Sends over so many connections until it is stopped or nothing is left; what wasn't answered for good is sent again,
    /// every second one at least, as Apple does or doesn't.
    func run(connections: Int) async throws {
        try await withThrowingTaskGroup(of: Void.self) { group in
            for _ in 0..<connections {
                group.addTask {
                    while !Task.isCancelled, let item = try self.take() { await self.send(item) }
                }
            }
            try await group.waitForAll()
        }
    }

    // MARK: - Private parts

    private func take() throws -> Item? {
        enum Next { case again(Item), fresh, none }
        let choice: Next = state.withLock { state in
            // What a load balancer has taken on it brings to its end.
            if state.isStopping, !isBalancing || state.again.isEmpty { return .none }
            return state.again.popLast().map(Next.again) ?? .fresh
        }
        switch choice {
        case .again(let item): return item
        case .fresh: return try next()
        case .none: return nil
        }
    }

    private func send(_ item: Item) async {
        let target = state.withLock { state in
            state.outcome.sent.insert(item.id)
            return state.targets.randomElement(using: &state.generator)
        }
        guard let target else { return }
        var isPaused = false
        do {
            let answer = try await Web.post(item.body, to: target, closing: isBalancing)
            isPaused = state.withLock { $0.took(answer, to: item) }
        } catch {
            isPaused = true
            state.withLock { $0.failed(item, error, isHidden: isBalancing && Web.isUnconnected(error)) }
        }
        // As any client does that was told to come back, or found nobody; a cancelled pause ends with its test.
        if isPaused { try? await Task.sleep(for: .milliseconds(20)) }
    }
}

extension Load.State {
    /// - Returns: whether the client has to wait.
    fileprivate mutating func took(_ answer: WebAnswer, to item: Load.Item) -> Bool {
        outcome.answers += 1
        switch answer.status {
        case 200:
            outcome.acknowledged.insert(item.id)
            return false
        case 503:
            outcome.unavailable[answer.reason ?? "without a reason", default: 0] += 1
            mayBeSentAgain(item)
            return true
        default:
            outcome.refused[item.id] = answer.status
            return false
        }
    }

    fileprivate mutating func failed(_ item: Load.Item, _ error: any Error, isHidden: Bool) {
        if isHidden {
            outcome.hidden += 1
            again.append(item)
        } else {
            outcome.unanswered["\(error)", default: 0] += 1
            mayBeSentAgain(item)
        }
    }

    fileprivate mutating func mayBeSentAgain(_ item: Load.Item) {
        if Bool.random(using: &generator) { again.append(item) }
    }
}
