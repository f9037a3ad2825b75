import AppleTokens
import Basics
import Postgres
import StoreTestSupport
import TestSupport
import Testing

@testable import Ingest

@Suite("The queue of submissions")
struct SubmissionQueueTests {
    private func submission(_ sink: ResponseSink = .none) -> Submission {
        let time = WallTime(seconds: 1_700_000_000)
        return Submission(
            work: .notification(.sample("email-enabled", sub: "person", at: time, id: "id")),
            sink: sink,
            ticket: 0
        )
    }

    /// A queue with a spool, that accepts submissions.
    private func openQueue(limit: Int, bytes: Int = .max) -> SubmissionQueue {
        let queue = SubmissionQueue(limit: limit, bytes: bytes, hasSpool: true)
        _ = queue.update { $0.connectionFailed() }
        return queue
    }

    @Test("Finished submissions are released, even if the queue is never empty.")
    func letsGo() {
        let queue = openQueue(limit: 8)
        weak var first: ResponseSink?
        do {
            let sink = ResponseSink { _ in }
            first = sink
            #expect(queue.submit(submission(sink)) == .accepted)
        }
        for _ in 0..<4 { #expect(queue.submit(submission(.none)) == .accepted) }
        for _ in 0..<8 {
            let taken = queue.waiting(atMost: 1)
            #expect(taken.count == 1)
            #expect(queue.finished(taken.map { ($0, .acknowledged) }).count == 1)
            #expect(queue.submit(submission(.none)) == .accepted)
        }
        #expect(queue.depth == 5)
        #expect(first == nil)
    }

    @Test("Above the limit of bytes nothing is accepted until the writer finishes a submission.")
    func bytes() {
        let size = submission().bytes
        let queue = openQueue(limit: 100, bytes: 3 * size)
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

    @Test("While nothing can be stored, waiting submissions are returned and no other is accepted.")
    func paused() {
        let queue = SubmissionQueue(limit: 100, hasSpool: false)
        #expect(queue.submit(submission()) == .paused)
        let (_, refused) = queue.update { $0.connectionFailed() }
        #expect(refused.isEmpty)
        let spooling = openQueue(limit: 100)
        #expect(spooling.submit(submission()) == .accepted)
        #expect(spooling.update { $0.spoolFailed(cause: "full") }.refused.isEmpty)
        #expect(spooling.update { $0.closed() }.refused.isEmpty)
        #expect(spooling.submit(submission()) == .closed)
        #expect(spooling.waiting(atMost: 9).count == 1)
    }

    @Test("The writer gets all submissions from before the end, and then nil.", .timeLimit(.minutes(1)))
    func end() async {
        let queue = openQueue(limit: 100)
        async let first = queue.next(atMost: 10)
        #expect(queue.submit(submission()) == .accepted)
        #expect(await first?.count == 1)
        #expect(queue.submit(submission()) == .accepted)
        _ = queue.update { $0.closed() }
        #expect(await queue.next(atMost: 10)?.count == 1)
        #expect(await queue.next(atMost: 10) == nil)
    }

    @Test("Submissions are put back only while the writer has a connection; otherwise they get a response.")
    func putBack() {
        let queue = openQueue(limit: 100)
        for _ in 0..<3 { #expect(queue.submit(submission()) == .accepted) }
        let bytes = queue.bytes
        let taken = queue.waiting(atMost: 2)
        #expect(!queue.putBack(taken), "there is no connection")
        #expect(queue.held(upTo: 3).map(\.number) == [1, 2])
        #expect(queue.depth == 1)
        #expect(queue.finished(taken.map { ($0, .acknowledged) }).count == 2)
        #expect(queue.bytes == bytes / 3)
        #expect(!queue.putBack([]))
    }

    @Test("Submissions that are put back are first again, in their order, and the writer need not wait for others.")
    func putBackInOrder() async throws {
        try await TestDatabase.with(.empty) { database in
            let connection = try await PostgresConnection.connect(database.settings)
            let queue = openQueue(limit: 100)
            _ = queue.update { $0.connected(connection, hasStored: false) }
            for _ in 0..<5 { #expect(queue.submit(submission()) == .accepted) }
            let bytes = queue.bytes
            let taken = queue.waiting(atMost: 2)
            #expect(await queue.next(atMost: 1)?.map(\.number) == [3])
            #expect(queue.putBack(taken.reversed()))
            #expect(queue.held(upTo: 5).map(\.number) == [3])
            #expect(queue.bytes == bytes)
            #expect(await queue.next(atMost: 10)?.map(\.number) == [1, 2, 4, 5])
            // The writer waits, or comes later: it gets them in any case.
            async let next = queue.next(atMost: 10)
            #expect(queue.putBack(queue.held(upTo: 1)))
            #expect(await next?.map(\.number) == [1])
            await connection.close()
        }
    }

    @Test("A submission that the writer keeps for too long gets one response.")
    func early() {
        let queue = openQueue(limit: 100)
        for _ in 0..<3 { #expect(queue.submit(submission()) == .accepted) }
        let mark = queue.lastNumber
        let taken = queue.waiting(atMost: 100)
        #expect(queue.submit(submission()) == .accepted)
        #expect(queue.waiting(atMost: 100, upTo: mark).isEmpty)
        #expect(queue.held(upTo: mark).map(\.number) == [1, 2, 3])
        // The writer is faster with the first, and slower with the others.
        #expect(queue.finished([(taken[0], .acknowledged)]).count == 1)
        let answers = taken.map { ($0, IngestResponse.acknowledged) }
        #expect(queue.answeredEarly(answers).map(\.0.number) == [2, 3])
        #expect(queue.answeredEarly(answers).isEmpty)
        #expect(queue.held(upTo: mark).isEmpty)
        #expect(queue.finished(answers).isEmpty)
        #expect(queue.bytes == submission().bytes)
    }
}
