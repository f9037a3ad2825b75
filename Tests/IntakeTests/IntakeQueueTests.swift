import AppleNotifications
import StoreTestSupport
import Testing

@testable import Intake

@Suite("The queue of an intake")
struct IntakeQueueTests {
    private func submission(_ lane: ReplyLane) -> Submission {
        let time = WallTime(seconds: 1_700_000_000)
        return Submission(
            work: .notification(.sample("email-enabled", sub: "person", at: time, id: "id")),
            lane: lane,
            ticket: 0
        )
    }

    @Test("What was taken is let go of, also by a queue that is never empty.")
    func letsGo() {
        let queue = IntakeQueue(limit: 8)
        queue.resume()
        weak var first: ReplyLane?
        do {
            let lane = ReplyLane { _ in }
            first = lane
            #expect(queue.submit(submission(lane)) == .accepted)
        }
        for _ in 0..<4 { #expect(queue.submit(submission(.nobody)) == .accepted) }
        for _ in 0..<8 {
            #expect(queue.waiting(atMost: 1).count == 1)
            #expect(queue.submit(submission(.nobody)) == .accepted)
        }
        #expect(queue.depth == 5)
        #expect(first == nil)
    }
}
