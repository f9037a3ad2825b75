import AccountStore
import Effects
import Testing

@Suite("The usual retries")
struct UsualRetriesTests {
    @Test("They are nine, from five seconds to a day, so that a delivery has ten attempts in three days.")
    func delays() {
        let usual = RetrySchedule(EndpointConfiguration.usualRetries)
        let seconds = [5, 300, 1_800, 7_200, 18_000, 36_000, 50_400, 72_000, 86_400]
        #expect(usual.delays == seconds.map { Duration.seconds($0) })
        #expect(Duration.seconds(seconds.reduce(0, +)) > .seconds(3 * 86_400))
    }
}
