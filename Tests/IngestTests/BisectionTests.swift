import AppleTokens
import Basics
import Postgres
import StoreTestSupport
import Testing

@testable import Ingest

@Suite("Bisection")
struct BisectionTests {
    private static let locked = PostgresError(.server, "made up", sqlState: .lockNotAvailable)

    /// Submissions with different tickets.
    private func batch(_ count: Int) -> [Submission] {
        let time = WallTime(seconds: 1_700_000_000)
        return (0..<count).map { number in
            Submission(
                work: .notification(.sample("email-enabled", sub: "person\(number)", at: time, id: "\(number)")),
                sink: .none,
                ticket: UInt64(number)
            )
        }
    }

    @Test("Only submissions that fail alone are refused.", arguments: [1, 20, 256])
    func refused(count: Int) async {
        let bad = { (submission: Submission) in submission.ticket % 16 != 3 }
        let bisection = await Bisection(batch(count)) { $0.contains(where: bad) ? Self.locked : nil }
        #expect(bisection.refused == Set((0..<count).filter { $0 % 16 != 3 }))
        #expect(bisection.stored == count - bisection.refused.count)
        #expect(bisection.refusal?.sqlState == .lockNotAvailable)
        #expect(bisection.failure == nil)
    }

    @Test("A fault that ends before the parts are tried causes no refusal.")
    func passing() async {
        let bisection = await Bisection(batch(40), after: Self.locked) { _ in nil }
        #expect(bisection.stored == 40)
        #expect(bisection.refused.isEmpty)
        #expect(bisection.refusal == nil)
    }

    @Test("After a lost connection, or a long time without success, the other parts are reported as untried.")
    func given() async {
        let lost = PostgresError(.connectionLost, "made up")
        var attempts = 0
        let broken = await Bisection(batch(40), after: Self.locked) { _ in
            attempts += 1
            return attempts > 1 ? lost : nil
        }
        #expect(attempts == 2)
        #expect(broken.failure?.code == .connectionLost)
        #expect(broken.stored > 0)
        #expect(broken.stored + broken.untried.count == 40)
        #expect(broken.refused.isEmpty)

        let impatient = await Bisection(batch(40), patience: .zero) { _ in Self.locked }
        #expect(impatient.failure != nil)
        #expect(impatient.untried.count == 40)
    }
}
