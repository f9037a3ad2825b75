import Testing

@testable import Ingest

@Suite("The committer")
struct CommitterTests {
    @Test("After one conflict a batch is tried again immediately; after several the pauses grow, up to a limit.")
    func pauses() {
        let pauses = (1...Committer.maximumConflicts).map(Committer.longestPause)
        #expect(pauses.prefix(3).allSatisfy { $0 == .zero })
        #expect(zip(pauses, pauses.dropFirst()).allSatisfy { $0 <= $1 })
        #expect(pauses[3] == .milliseconds(2))
        #expect(pauses.reduce(.zero, +) < .seconds(1))
    }
}
