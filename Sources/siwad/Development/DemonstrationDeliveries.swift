import AccountStore
import AppleTokens
import Postgres
import ServiceLifecycle
import Terminal

/// Compares the messages that the application of `siwad dev` gets with the changes that the demonstration makes.
struct DemonstrationDeliveries: Sendable {
    /// A change that the application must get exactly once.
    struct Change: Sendable, Hashable {
        let subject: String
        let type: String
    }

    private let receiver: DemonstrationReceiver
    private let pool: ConnectionPool
    private let console: Console
    /// The changes of all steps so far.
    private var expected: [Change] = []
    /// The number of messages before the present step.
    private var earlier = 0
    private var startedAt = ContinuousClock.now
    /// True if the application refuses the message of the present step once.
    private var isRetried = false
    /// For each wait. Short after a missing message: the demonstration has failed, and the others are probably missing too.
    private var limit = Duration.seconds(10)

    init(to receiver: DemonstrationReceiver, pool: ConnectionPool, console: Console) {
        self.receiver = receiver
        self.pool = pool
        self.console = console
    }

    /// - Parameter subject: the person whose next message the application answers with 500; nil: it refuses none.
    mutating func stepBegins(refusing subject: String? = nil) {
        isRetried = subject != nil
        if let subject { receiver.refuseOnce(subject: subject) }
        earlier = receiver.messages.count
        startedAt = .now
    }

    /// Waits until the application gets the change of the present step, and reports it.
    ///
    /// - Parameter change: nil if the step makes none.
    /// - Returns: false if the message is missing, of another type or not signed.
    /// - Throws: `CancellationError` if the process shuts down before the message arrives.
    mutating func tell(_ change: Change?) async throws -> Bool {
        guard let change else {
            // check() finds a message that arrives later nevertheless.
            console.print("    told nothing")
            return true
        }
        expected.append(change)
        let deadline = ContinuousClock.now + limit
        var refusedAt: ContinuousClock.Instant?
        while .now < deadline {
            let messages = receiver.messages.dropFirst(earlier).filter { $0.change.subject == change.subject }
            if let refused = messages.first(where: { !$0.isAccepted }), refusedAt == nil {
                refusedAt = refused.arrivedAt
                console.print("    the application answered 500 to \(refused.change.type); it is sent again")
            }
            if let message = messages.first(where: \.isAccepted) {
                let time = (message.arrivedAt - (refusedAt ?? startedAt)).milliseconds
                let when = refusedAt == nil ? "in \(time) ms" : "\(time) ms later"
                let id = message.id ?? "a message that is not signed"
                let signature = message.id == nil ? "" : ", signature verified"
                console.print("    told the application \(when): \(message.change.type) (\(id))\(signature)")
                return message.id != nil && message.change == change && (refusedAt != nil) == isRetried
            }
            try await pause(for: .milliseconds(2))
        }
        limit = .seconds(1)
        console.print("    \(console.style.painted("✗", .red)) the application did not get \(change.type)")
        return false
    }

    /// Waits until siwad sends no message about the changes any more, and compares.
    ///
    /// - Returns: false if a message was missing, doubled, unexpected or not signed.
    func check() async throws -> Bool {
        var faults = Self.faults(in: receiver.messages, expecting: expected)
        if faults.isEmpty {
            let isSettled = try await settle()
            // A further copy may have arrived during the wait.
            faults = Self.faults(in: receiver.messages, expecting: expected)
            if !isSettled { faults.append("deliveries of the demonstration are still waiting") }
        }
        if !faults.isEmpty { console.print() }
        console.print(lines: faults.map { "\(console.style.painted("✗", .red)) \($0)" })
        return faults.isEmpty
    }

    /// The differences between messages and the changes that they must report, in words.
    static func faults(in messages: [DemonstrationReceiver.Message], expecting changes: [Change]) -> [String] {
        let subjects = Set(changes.map(\.subject))
        // The queue may contain messages about other people, of an earlier run.
        let messages = messages.filter { subjects.contains($0.change.subject) }
        let all = Set(changes + messages.map(\.change)).sorted { ($0.subject, $0.type) < ($1.subject, $1.type) }
        var faults: [String] = []
        for change in all {
            let name = "\(change.type) of \(change.subject)"
            let copies = messages.filter { $0.change == change }
            let accepted = copies.count { $0.isAccepted }
            let expected = changes.count { $0 == change }
            if accepted < expected { faults.append("the application did not get \(name)") }
            if accepted > expected {
                faults.append("the application got \(name) too often: \(accepted), not \(expected)")
            }
            if copies.contains(where: { $0.id == nil }) {
                faults.append("the application could not verify the signature of \(name)")
            }
        }
        // An application ignores a message whose id it knows.
        for (id, sharing) in Dictionary(grouping: messages, by: \.id) where Set(sharing.map(\.change)).count > 1 {
            if let id { faults.append("the application got several changes with the id \(id)") }
        }
        return faults
    }

    /// Waits until every delivery about the people of the changes has ended. Until siwad has stored that a message was
    /// delivered, it may send it again. A round of publication takes every change that was committed before it, so when the
    /// last change of the demonstration has arrived, all earlier ones have their deliveries.
    ///
    /// - Returns: false if that takes too long.
    private func settle() async throws -> Bool {
        let deadline = ContinuousClock.now + limit
        let subjects = Set(expected.map(\.subject))
        while .now < deadline {
            let waiting = try await pool.withSession { session throws(PostgresError) in
                var filter = DeliveryFilter()
                filter.endpoint = DemonstrationEndpoint.name
                filter.statuses = [.pending, .retry]
                // The latest are listed first: a backlog of an earlier run hides none of the demonstration.
                return try DeliveryRecords.list(filter, limit: 100, in: session)
            }
            if !waiting.contains(where: { subjects.contains($0.change.subject.rawValue) }) { return true }
            try await pause(for: .milliseconds(10))
        }
        return false
    }

    private func pause(for duration: Duration) async throws {
        guard !Task.isShuttingDownGracefully else { throw CancellationError() }
        try await Task.sleep(for: duration)
    }
}
