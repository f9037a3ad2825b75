import AppleTokens
import Postgres
import StoreTestSupport
import Testing

@testable import Ingest

@Suite("Storing a batch by parts")
struct SieveTests {
    private static let locked = PostgresError(.server, "made up", sqlState: .lockNotAvailable)

    /// So many submissions, told apart by their tickets.
    private func batch(_ count: Int) -> [Submission] {
        let time = WallTime(seconds: 1_700_000_000)
        return (0..<count).map { number in
            Submission(
                work: .notification(.sample("email-enabled", sub: "person\(number)", at: time, id: "\(number)")),
                lane: .nobody,
                ticket: UInt64(number)
            )
        }
    }

    @Test("Only those are refused that fail alone, however many they are.", arguments: [1, 20, 256])
    func refused(count: Int) async {
        let bad = { (submission: Submission) in submission.ticket % 16 != 3 }
        let sieve = await Sieve(batch(count)) { $0.contains(where: bad) ? Self.locked : nil }
        #expect(sieve.refused == Set((0..<count).filter { $0 % 16 != 3 }))
        #expect(sieve.stored == count - sieve.refused.count)
        #expect(sieve.refusal?.sqlState == .lockNotAvailable)
        #expect(sieve.failure == nil)
    }

    @Test("What held the whole batch up and is gone when its parts are tried refuses nothing.")
    func passing() async {
        let sieve = await Sieve(batch(40), after: Self.locked) { _ in nil }
        #expect(sieve.stored == 40)
        #expect(sieve.refused.isEmpty)
        #expect(sieve.refusal == nil)
    }

    @Test("When nothing is stored for long, or the connection is lost, the rest isn't tried, and none is forgotten.")
    func given() async {
        let lost = PostgresError(.connectionLost, "made up")
        var attempts = 0
        let broken = await Sieve(batch(40), after: Self.locked) { _ in
            attempts += 1
            return attempts > 1 ? lost : nil
        }
        #expect(attempts == 2)
        #expect(broken.failure?.code == .connectionLost)
        #expect(broken.stored > 0)
        #expect(broken.stored + broken.untried.count == 40)
        #expect(broken.refused.isEmpty)

        let impatient = await Sieve(batch(40), patience: .zero) { _ in Self.locked }
        #expect(impatient.failure != nil)
        #expect(impatient.untried.count == 40)
    }
}
