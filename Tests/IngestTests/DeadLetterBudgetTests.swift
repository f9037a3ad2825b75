import AppleTokens
import Testing

@testable import Ingest

@Suite("The limit of open dead letters")
struct DeadLetterBudgetTests {
    @Test("At the limit no letter is reserved; a released reservation makes room.")
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

    @Test("A count that began before a commit does not make room for another letter.")
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

    @Test("A count that began before a letter of the spool was stored does not make room for another one.")
    func staleCountOfSpool() {
        let budget = DeadLetterBudget(limit: 1)
        #expect(budget.reserve(.expired))
        budget.spooled(.expired)
        budget.countingBegan()
        // It may be committed after the database counted.
        budget.drained(.expired)
        budget.counted([:])
        #expect(!budget.reserve(.expired))
        budget.countingBegan()
        budget.counted([.expired: 1])
        #expect(!budget.reserve(.expired))
        budget.countingBegan()
        budget.counted([:])
        #expect(budget.reserve(.expired))
    }

    @Test("A count that includes every letter replaces the estimate.")
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
