import Testing

@testable import siwad

@Suite("What the daemon's parts tell each other")
struct DaemonStateTests {
    @Test(
        "Who asked before the shut-down began and was answered after it has been told of it.",
        .timeLimit(.minutes(1))
    )
    func told() async {
        let state = DaemonState()
        state.readinessAsked()
        #expect(!state.tellWhetherDraining())
        async let drained = ContinuousClock().measure { await state.beginDraining(within: .seconds(3_600)) }
        while !state.tellWhetherDraining() { await Task.yield() }
        #expect(await drained < .seconds(60))
    }

    @Test("Where nobody asks, nobody is waited for.", .timeLimit(.minutes(1)))
    func unasked() async {
        await DaemonState().beginDraining(within: .seconds(3_600))
    }
}
