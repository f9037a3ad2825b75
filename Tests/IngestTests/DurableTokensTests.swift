import Spool
import Testing

@testable import Ingest

@Suite("Durable tokens")
struct DurableTokensTests {
    private func digest(_ number: Int) -> [UInt8] {
        (0..<32).map { UInt8(truncatingIfNeeded: number >> ($0 % 4 * 8)) }
    }

    @Test("At most twice the limit are remembered, including the latest ones.")
    func bounded() {
        let tokens = DurableTokens()
        let count = 5 * DurableTokens.limit
        for number in 0..<count { tokens.insert(digest(number), as: .notifications) }
        let remembered = (0..<count).filter { tokens.contains(digest($0), as: .notifications) }
        #expect(remembered.count <= 2 * DurableTokens.limit)
        #expect(remembered.suffix(DurableTokens.limit).elementsEqual((count - DurableTokens.limit)..<count))
    }

    @Test("A repeated token is not displaced by others.")
    func asked() {
        let tokens = DurableTokens()
        tokens.insert(digest(-1), as: .notifications)
        for number in 0..<(5 * DurableTokens.limit) {
            tokens.insert(digest(number), as: .notifications)
            guard number.isMultiple(of: 1_000) else { continue }
            guard tokens.contains(digest(-1), as: .notifications) else {
                Issue.record("it was forgotten after \(number) others")
                return
            }
        }
    }

    @Test("A token that is durable as a dead letter is not durable as a notification.")
    func kinds() {
        let tokens = DurableTokens()
        tokens.insert(digest(1), as: .letters)
        #expect(tokens.contains(digest(1), as: .letters))
        #expect(!tokens.contains(digest(1), as: .notifications))
    }

    @Test("After a loss in the spool everything is forgotten, once for each loss.")
    func losses() {
        let tokens = DurableTokens()
        tokens.insert(digest(1), as: .notifications)
        tokens.spoolLost(0)
        #expect(tokens.contains(digest(1), as: .notifications))
        tokens.spoolLost(1)
        #expect(!tokens.contains(digest(1), as: .notifications))
        tokens.insert(digest(1), as: .notifications)
        tokens.spoolLost(1)
        #expect(tokens.contains(digest(1), as: .notifications))
    }

    @Test("Unverified tokens do not displace verified ones.")
    func apart() {
        let tokens = DurableTokens()
        tokens.insert(digest(-1), as: .notifications)
        for number in 0..<(5 * DurableTokens.limit) { tokens.insert(digest(number), as: .unverified) }
        #expect(tokens.contains(digest(-1), as: .notifications))
        #expect(!tokens.contains(digest(-1), as: .unverified))
        tokens.forget(.unverified)
        #expect(tokens.contains(digest(-1), as: .notifications))
        tokens.forgetAll()
        #expect(!tokens.contains(digest(-1), as: .notifications))
    }
}
