import Testing

@testable import siwad

@Suite("A gate")
struct GateTests {
    @Test("lets through those who wait, and those who come later.")
    func opens() async {
        let gate = Gate()
        async let first = gate.wait()
        async let second = gate.wait()
        gate.open()
        let third = await gate.wait()
        let waited = await [first, second]
        #expect(waited + [third] == [true, true, true])
    }

    @Test("sends away whoever is cancelled.")
    func cancelled() async {
        let gate = Gate()
        let waiting = Task { await gate.wait() }
        waiting.cancel()
        #expect(await waiting.value == false)
    }
}
