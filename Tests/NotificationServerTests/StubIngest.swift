import Ingest
import NotificationServer
import Synchronization

/// Replaces the ingest part of the daemon: stores the bodies, and answers immediately or on demand.
final class StubIngest: Sendable {
    private struct State {
        var bodies: [String] = []
        var delivers: [UInt64: @Sendable ([Reply]) -> Void] = [:]
    }

    /// The tickets of the waiting requests in their order.
    let tickets: AsyncStream<UInt64>

    private let state = Mutex(State())
    private let arrived: AsyncStream<UInt64>.Continuation
    private let decide: @Sendable (String) -> IngestResponse?

    /// - Parameter decide: returns the response to a body; `nil` for later.
    init(_ decide: @escaping @Sendable (String) -> IngestResponse? = { _ in .acknowledged }) {
        self.decide = decide
        (tickets, arrived) = AsyncStream.makeStream()
    }

    var bodies: [String] { state.withLock { $0.bodies } }

    /// The receiver of any event loop.
    var receiver: RequestReceiverFactory {
        { deliver in
            { [self] body, ticket in
                var bytes: [UInt8] = []
                for index in body.indices {
                    bytes.append(body[index])
                }
                let text = String(decoding: bytes, as: UTF8.self)
                let response = decide(text)
                state.withLock { state in
                    state.bodies.append(text)
                    if response == nil { state.delivers[ticket] = deliver }
                }
                if response == nil { arrived.yield(ticket) }
                return response
            }
        }
    }

    /// Answers waiting requests in one batch from the thread of the test.
    func respond(_ replies: [Reply]) {
        guard let first = replies.first else { return }
        state.withLock { $0.delivers[first.ticket] }?(replies)
    }
}
