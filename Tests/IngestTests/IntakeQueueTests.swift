import AppleTokens
import StoreTestSupport
import Testing

@testable import Ingest

@Suite("The queue of an intake")
struct IntakeQueueTests {
    private func submission(_ lane: ReplyLane = .nobody) -> Submission {
        let time = WallTime(seconds: 1_700_000_000)
        return Submission(
            work: .notification(.sample("email-enabled", sub: "person", at: time, id: "id")),
            lane: lane,
            ticket: 0
        )
    }

    @Test("What was taken and is done with is let go of, also by a queue that is never empty.")
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
            let taken = queue.waiting(atMost: 1)
            #expect(taken.count == 1)
            #expect(queue.finished(taken.map { ($0, .acknowledged) }).count == 1)
            #expect(queue.submit(submission(.nobody)) == .accepted)
        }
        #expect(queue.depth == 5)
        #expect(first == nil)
    }

    @Test("Over the limit of bytes nothing is taken in, not before the writer is done with what it took.")
    func bytes() {
        let size = submission().bytes
        let queue = IntakeQueue(limit: 100, bytes: 3 * size)
        queue.resume()
        for _ in 0..<3 { #expect(queue.submit(submission()) == .accepted) }
        #expect(queue.submit(submission()) == .full)
        let taken = queue.waiting(atMost: 2)
        #expect(queue.submit(submission()) == .full)
        _ = queue.finished([(taken[0], .acknowledged)])
        #expect(queue.submit(submission()) == .accepted)
        #expect(queue.submit(submission()) == .full)
        // Twice is once.
        _ = queue.finished([(taken[0], .acknowledged)])
        #expect(queue.bytes == 3 * size)
    }

    @Test("What the writer keeps for too long is answered once, whichever of the two is faster.")
    func early() {
        let queue = IntakeQueue(limit: 100)
        queue.resume()
        for _ in 0..<3 { #expect(queue.submit(submission()) == .accepted) }
        let mark = queue.lastNumber
        let taken = queue.waiting(atMost: 100)
        #expect(queue.submit(submission()) == .accepted)
        #expect(queue.waiting(atMost: 100, upTo: mark).isEmpty)
        #expect(queue.held(upTo: mark).map(\.number) == [1, 2, 3])
        // The writer is faster with the first, and slower with the others.
        #expect(queue.finished([(taken[0], .acknowledged)]).count == 1)
        let answers = taken.map { ($0, Answer.acknowledged) }
        #expect(queue.answeredEarly(answers).map(\.0.number) == [2, 3])
        #expect(queue.answeredEarly(answers).isEmpty)
        #expect(queue.held(upTo: mark).isEmpty)
        #expect(queue.finished(answers).isEmpty)
        #expect(queue.bytes == submission().bytes)
    }
}
