import AppleSimulator
import Ingest

/// An event loop's place in the tests: sends bodies through a lane and waits for their answers.
actor TestClient {
    private let service: IngestService
    private var madeLane: Receiver?
    private var lastTicket: UInt64 = 0
    /// How many requests went in.
    var received: Int { Int(lastTicket) }
    private var waiting: [UInt64: CheckedContinuation<IngestResponse, Never>] = [:]
    /// Answers that came before anybody waited.
    private var early: [UInt64: IngestResponse] = [:]
    /// How many requests went in and have no answer yet.
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
        if let answer = lane().receive(Array(body.utf8).span, ticket: lastTicket) {
            pending -= 1
            early[lastTicket] = answer
        }
        return lastTicket
    }

    private func lane() -> Receiver {
        if let madeLane { return madeLane }
        let lane = Receiver(service: service) { [weak self] replies in
            // Awaited by whoever waits for one of these answers.
            Task { await self?.take(replies) }
        }
        madeLane = lane
        return lane
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
