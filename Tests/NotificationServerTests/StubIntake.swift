import Ingest
import NotificationServer
import Synchronization

/// Stands where the intake stands: remembers the bodies, and answers at once or when told.
final class StubIntake: Sendable {
    private struct State {
        var bodies: [String] = []
        var delivers: [UInt64: @Sendable ([Reply]) -> Void] = [:]
    }

    /// The tickets of the requests that wait, in the order in which they came.
    let tickets: AsyncStream<UInt64>

    private let state = Mutex(State())
    private let arrived: AsyncStream<UInt64>.Continuation
    private let decide: @Sendable (String) -> Answer?

    /// Answers each body with what `decide` says; `nil`: later.
    init(_ decide: @escaping @Sendable (String) -> Answer? = { _ in .acknowledged }) {
        self.decide = decide
        (tickets, arrived) = AsyncStream.makeStream()
    }

    /// The bodies that came so far.
    var bodies: [String] { state.withLock { $0.bodies } }

    /// The lane of any event loop.
    var lane: LaneFactory {
        { deliver in
            LaneInterface { [self] body, ticket in
                var bytes: [UInt8] = []
                for index in body.indices {
                    bytes.append(body[index])
                }
                let text = String(decoding: bytes, as: UTF8.self)
                let answer = decide(text)
                state.withLock { state in
                    state.bodies.append(text)
                    if answer == nil { state.delivers[ticket] = deliver }
                }
                if answer == nil { arrived.yield(ticket) }
                return answer
            }
        }
    }

    /// Answers requests that wait, from a thread of the test's, as one batch.
    func answer(_ replies: [Reply]) {
        guard let first = replies.first else { return }
        state.withLock { $0.delivers[first.ticket] }?(replies)
    }
}
