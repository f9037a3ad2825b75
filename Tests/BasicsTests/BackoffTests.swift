import Testing

@testable import Basics

@Suite("Growing pauses")
struct BackoffTests {
    /// The longest that each pause after a success may be.
    private static let longest: [Duration] =
        [100, 200, 400, 800, 1_600, 3_200].map { .milliseconds($0) } + Array(repeating: .seconds(5), count: 100)

    @Test("Each pause is half to all of twice the one before, and never more than five seconds.")
    func growth() {
        for _ in 0..<100 {
            var pauses = Backoff()
            for (number, longest) in Self.longest.enumerated() {
                let pause = pauses.next()
                #expect(pause >= longest / 2 && pause <= longest, "pause \(number)")
            }
        }
    }

    @Test("Daemons that fail at the same time pause for times of the whole range.", arguments: [0, 3, 20])
    func spread(failures: Int) {
        let pauses = (0..<1_000).map { _ in
            var pauses = Backoff()
            for _ in 0..<failures { _ = pauses.next() }
            return pauses.next()
        }
        // In a thousand pauses, a tenth of the range stays empty once in 10^45 runs.
        let tenth = Self.longest[failures] / 20
        for part in 0..<10 {
            let start = Self.longest[failures] / 2 + tenth * part
            #expect(pauses.contains { $0 >= start && $0 <= start + tenth }, "part \(part)")
        }
    }

    @Test("After a success, the pauses begin again with the shortest.")
    func reset() {
        var pauses = Backoff()
        for _ in 0..<20 { _ = pauses.next() }
        pauses = Backoff()
        #expect(pauses.next() <= .milliseconds(100))
    }
}
