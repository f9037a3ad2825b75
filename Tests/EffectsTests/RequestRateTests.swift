import Testing

@testable import Effects

@Suite("The rate of an endpoint")
struct RequestRateTests {
    @Test("As many requests as in a second may be made together, and the rest when their time has come.")
    func rate() {
        let start = ContinuousClock.now
        var rate = RequestRate(5, at: start)
        #expect(rate.available(at: start) == 1)
        #expect(rate.available(at: start + .seconds(10)) == 5)
        rate.used(5)
        #expect(rate.available(at: start + .seconds(10)) == 0)
        #expect(rate.pause == .milliseconds(200))
        #expect(rate.available(at: start + .milliseconds(10_200)) == 1)
    }

    @Test(
        "No number that the database can hold ends the process.",
        arguments: [1e300, 1e20, 1e-300, .leastNonzeroMagnitude, .infinity, .nan]
    )
    func extreme(number: Double) {
        let start = ContinuousClock.now
        var rate = RequestRate(number, at: start)
        #expect(rate.available(at: start + .seconds(86_400)) >= 1)
        rate.used(1)
        #expect(rate.pause <= .seconds(1_000))
    }
}
