import Testing

@testable import Ingest

@Suite("Tokens that need not be written again")
struct DurableTokensTests {
    private func digest(_ number: Int) -> [UInt8] {
        (0..<32).map { UInt8(truncatingIfNeeded: number >> ($0 % 4 * 8)) }
    }

    @Test("However many come, no more than twice the limit are remembered, and the last ones are.")
    func bounded() {
        let tokens = DurableTokens()
        let count = 5 * DurableTokens.limit
        for number in 0..<count { tokens.insert(digest(number), isVerified: true) }
        let remembered = (0..<count).filter { tokens.contains(digest($0), isVerified: true) }
        #expect(remembered.count <= 2 * DurableTokens.limit)
        #expect(remembered.suffix(DurableTokens.limit).elementsEqual((count - DurableTokens.limit)..<count))
    }

    @Test("A token that keeps coming is not forgotten for others.")
    func asked() {
        let tokens = DurableTokens()
        tokens.insert(digest(-1), isVerified: true)
        for number in 0..<(5 * DurableTokens.limit) {
            tokens.insert(digest(number), isVerified: true)
            guard number.isMultiple(of: 1_000) else { continue }
            guard tokens.contains(digest(-1), isVerified: true) else {
                Issue.record("it was forgotten after \(number) others")
                return
            }
        }
    }

    @Test("Tokens without a verified signature displace none that has one.")
    func apart() {
        let tokens = DurableTokens()
        tokens.insert(digest(-1), isVerified: true)
        for number in 0..<(5 * DurableTokens.limit) { tokens.insert(digest(number), isVerified: false) }
        #expect(tokens.contains(digest(-1), isVerified: true))
        #expect(!tokens.contains(digest(-1), isVerified: false))
        tokens.forgetUnverified()
        #expect(tokens.contains(digest(-1), isVerified: true))
        tokens.forgetAll()
        #expect(!tokens.contains(digest(-1), isVerified: true))
    }
}
