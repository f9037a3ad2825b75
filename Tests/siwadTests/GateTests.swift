import Testing

@testable import siwad

@Suite("A gate")
struct GateTests {
    @Test("resumes waiting tasks, and does not block later ones.")
    func opens() async {
        let gate = Gate()
        async let first = gate.wait()
        async let second = gate.wait()
        gate.open()
        let third = await gate.wait()
        let waited = await [first, second]
        #expect(waited + [third] == [true, true, true])
    }

    @Test("resumes a cancelled task with false.")
    func cancelled() async {
        let gate = Gate()
        let waiting = Task { await gate.wait() }
        waiting.cancel()
        #expect(await waiting.value == false)
    }
}
