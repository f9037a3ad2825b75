import Testing

@testable import Ingest

@Suite("The committer")
struct CommitterTests {
    @Test("After a conflict a batch is tried again at once, after several the pauses grow, and all of them end soon.")
    func pauses() {
        let pauses = (1...Committer.maximumConflicts).map(Committer.longestPause)
        #expect(pauses.prefix(3).allSatisfy { $0 == .zero })
        #expect(zip(pauses, pauses.dropFirst()).allSatisfy { $0 <= $1 })
        #expect(pauses[3] == .milliseconds(2))
        #expect(pauses.reduce(.zero, +) < .seconds(1))
    }
}
