import Effects
import Testing

@Suite("The schedule of retries")
struct RetryScheduleTests {
    private static let usual = RetrySchedule([
        .seconds(5), .seconds(300), .seconds(1_800), .seconds(7_200), .seconds(18_000), .seconds(36_000),
        .seconds(50_400),
        .seconds(72_000), .seconds(86_400),
    ])

    @Test("Each delay is 20 % longer or shorter at most.", arguments: [-1.0, -0.5, 0, 0.5, 1])
    func jitter(_ jitter: Double) {
        for (index, delay) in Self.usual.delays.enumerated() {
            let decision = Self.usual.decision(after: index + 1, jitter: jitter)
            #expect(decision == .retry(after: delay * (1 + jitter / 5)))
        }
    }

    @Test("After the tenth attempt, about three days after the first, the delivery is dead.")
    func end() {
        let total = Self.usual.delays.reduce(.zero, +)
        #expect(total == .seconds(75 * 3_600 + 35 * 60 + 5))
        #expect(Self.usual.decision(after: 9, jitter: 0) == .retry(after: .seconds(86_400)))
        #expect(Self.usual.decision(after: 10, jitter: 0) == .dead)
        #expect(Self.usual.decision(after: 11, jitter: 0) == .dead)
    }

    @Test("Without delays there is one attempt.")
    func single() {
        #expect(RetrySchedule([]).decision(after: 1, jitter: 0) == .dead)
    }
}
