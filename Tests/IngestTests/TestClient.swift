import AppleSimulator
import Ingest

/// Takes the place of an event loop: sends bodies to a receiver and waits for the responses.
actor TestClient {
    private let service: IngestService
    private var madeReceiver: Receiver?
    private var lastTicket: UInt64 = 0
    /// The number of requests that were sent.
    var received: Int { Int(lastTicket) }
    private var waiting: [UInt64: CheckedContinuation<IngestResponse, Never>] = [:]
    /// Responses that were delivered before the test waited for them.
    private var early: [UInt64: IngestResponse] = [:]
    /// The number of requests without a response.
    private(set) var pending = 0

    init(_ service: IngestService) {
        self.service = service
    }

    /// The answer to a request with this body.
    func answer(_ body: String) async -> IngestResponse {
        let ticket = submit(body)
        if let answer = early.removeValue(forKey: ticket) { return answer }
        return await withCheckedContinuation { waiting[ticket] = $0 }
    }

    /// The answers to requests with these bodies, all sent before the first answer is awaited.
    func answers(_ bodies: [String]) async -> [IngestResponse] {
        let tickets = bodies.map { submit($0) }
        var answers: [IngestResponse] = []
        for ticket in tickets {
            if let answer = early.removeValue(forKey: ticket) {
                answers.append(answer)
            } else {
                answers.append(await withCheckedContinuation { waiting[ticket] = $0 })
            }
        }
        return answers
    }

    private func submit(_ body: String) -> UInt64 {
        lastTicket += 1
        pending += 1
        if let answer = receiver().receive(Array(body.utf8).span, ticket: lastTicket) {
            pending -= 1
            early[lastTicket] = answer
        }
        return lastTicket
    }

    private func receiver() -> Receiver {
        if let madeReceiver { return madeReceiver }
        let receiver = Receiver(service: service) { [weak self] replies in
            // Awaited by the tests that wait for one of these responses.
            Task { await self?.take(replies) }
        }
        madeReceiver = receiver
        return receiver
    }

    private func take(_ replies: [Reply]) {
        for reply in replies {
            pending -= 1
            if let waiter = waiting.removeValue(forKey: reply.ticket) {
                waiter.resume(returning: reply.answer)
            } else {
                early[reply.ticket] = reply.answer
            }
        }
    }
}
