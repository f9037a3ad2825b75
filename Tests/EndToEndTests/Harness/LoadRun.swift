import NIOCore
import Synchronization

/// Requests over many connections, with the result of each notification.
final class LoadRun: Sendable {
    /// A notification to send.
    struct Item: Sendable {
        /// The `jti`.
        let id: String
        let body: String
    }

    /// The results that the clients saw.
    struct Outcome: Sendable {
        /// Notifications with a 200.
        var acknowledged: Set<String> = []
        /// Notifications with a final refusal, and its status.
        var refused: [String: Int] = [:]
        /// The number of 503 responses by reason.
        var unavailable: [String: Int] = [:]
        /// The number of requests without a response, by the client's error.
        var unanswered: [String: Int] = [:]
        /// All notifications that were sent.
        var sent: Set<String> = []

        /// The number of connections that failed and that a load balancer would hide by using another address.
        var redirected = 0
        /// The number of all responses.
        var responses = 0
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
    ///   - balancing: acts like a load balancer: each request uses a new connection, and goes to another target if one
    ///     refuses the connection.
    ///   - next: creates the next notification; nil if there are no more.
    init(to targets: [String], balancing: Bool = false, next: @escaping @Sendable () throws -> Item?) {
        state = Mutex(State(targets: targets))
        self.isBalancing = balancing
        self.next = next
    }

    /// The results so far.
    var outcome: Outcome { state.withLock { $0.outcome } }

    /// The number of responses so far.
    var responses: Int { state.withLock { $0.outcome.responses } }

    /// The number of acknowledged notifications so far.
    var acknowledged: Int { state.withLock { $0.outcome.acknowledged.count } }

    /// Sends further requests to these targets, chosen at random.
    func redirect(to targets: [String]) {
        state.withLock { $0.targets = targets }
    }

    /// Sends no new notifications.
    func stop() {
        state.withLock { $0.isStopping = true }
    }

    /// Sends until it is stopped or no notification is left. Half of the notifications without a final response are sent
    /// again, since Apple may or may not repeat them.
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
            // A load balancer finishes the requests that it has accepted.
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
            let response = try await Web.post(item.body, to: target, closing: isBalancing)
            isPaused = state.withLock { $0.received(response, to: item) }
        } catch {
            isPaused = true
            state.withLock { $0.failed(item, error, isRedirected: isBalancing && Web.isUnconnected(error)) }
        }
        // Clients pause after a 503 or a failed connection. The sleep throws only when the test is cancelled.
        if isPaused { try? await Task.sleep(for: .milliseconds(20)) }
    }
}

extension LoadRun.State {
    /// - Returns: whether the client has to pause.
    fileprivate mutating func received(_ response: WebResponse, to item: LoadRun.Item) -> Bool {
        outcome.responses += 1
        switch response.status {
        case 200:
            outcome.acknowledged.insert(item.id)
            return false
        case 503:
            outcome.unavailable[response.reason ?? "no reason", default: 0] += 1
            mayBeSentAgain(item)
            return true
        default:
            outcome.refused[item.id] = response.status
            return false
        }
    }

    fileprivate mutating func failed(_ item: LoadRun.Item, _ error: any Error, isRedirected: Bool) {
        if isRedirected {
            outcome.redirected += 1
            again.append(item)
        } else {
            outcome.unanswered["\(error)", default: 0] += 1
            mayBeSentAgain(item)
        }
    }

    fileprivate mutating func mayBeSentAgain(_ item: LoadRun.Item) {
        if Bool.random(using: &generator) { again.append(item) }
    }
}
