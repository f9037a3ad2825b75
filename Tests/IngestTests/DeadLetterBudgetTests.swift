import AppleTokens
import Testing

@testable import Ingest

@Suite("How many dead letters may be open")
struct DeadLetterBudgetTests {
    @Test("No more than the limit are reserved; what became no new letter makes room again.")
    func limit() {
        let budget = DeadLetterBudget(limit: 2)
        #expect(budget.reserve(.expired))
        #expect(budget.reserve(.expired))
        #expect(!budget.reserve(.expired))
        #expect(budget.reserve(.unknownAudience))
        budget.release(.expired)
        #expect(budget.reserve(.expired))
        #expect(!budget.reserve(.expired))
    }

    @Test("A count that began before a letter was committed makes no room for another one.")
    func staleCount() {
        let budget = DeadLetterBudget(limit: 3)
        #expect(budget.reserve(.expired))
        budget.countingBegan()
        #expect(budget.reserve(.expired))
        // Both may be committed after the database counted.
        budget.kept(.expired)
        budget.kept(.expired)
        budget.counted([:])
        #expect(budget.reserve(.expired))
        #expect(!budget.reserve(.expired))
    }

    @Test("A count that could see everything is believed.")
    func freshCount() {
        let budget = DeadLetterBudget(limit: 2)
        for _ in 0..<2 {
            #expect(budget.reserve(.expired))
            budget.kept(.expired)
        }
        #expect(!budget.reserve(.expired))
        budget.countingBegan()
        budget.counted([.expired: 1])
        #expect(budget.reserve(.expired))
        #expect(!budget.reserve(.expired))
    }
}
