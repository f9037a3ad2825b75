import Testing

@testable import siwad

@Suite("The state of the daemon")
struct DaemonStateTests {
    @Test(
        "The shutdown waits until a readiness probe was answered that it has begun.",
        .timeLimit(.minutes(1))
    )
    func drainedAfterProbe() async {
        let state = DaemonState()
        state.readinessAsked()
        #expect(!state.reportDraining())
        async let drained = ContinuousClock().measure { await state.beginDraining(within: .seconds(3_600)) }
        while !state.reportDraining() { await Task.yield() }
        #expect(await drained < .seconds(60))
    }

    @Test("The shutdown does not wait if nothing probes readiness.", .timeLimit(.minutes(1)))
    func unasked() async {
        await DaemonState().beginDraining(within: .seconds(3_600))
    }
}
