import Testing

@testable import Basics

@Suite("A wakeup event")
struct WakeupEventTests {
    @Test("Without a signal, each wait lasts its full time.")
    func lasts() async {
        let event = WakeupEvent()
        for _ in 0..<3 {
            let start = ContinuousClock.now
            await event.wait(atMost: .milliseconds(20))
            #expect(ContinuousClock.now - start >= .milliseconds(20))
        }
    }

    @Test("A signal ends one wait, also one that begins after it.")
    func ring() async {
        let event = WakeupEvent()
        event.signal()
        event.signal()
        await event.wait(atMost: .seconds(1_000))
        async let wait: Void = event.wait(atMost: .seconds(1_000))
        event.signal()
        await wait
        let start = ContinuousClock.now
        await event.wait(atMost: .milliseconds(20))
        #expect(ContinuousClock.now - start >= .milliseconds(20))
    }

    @Test("The cancellation of the waiting task ends its wait.")
    func cancellation() async {
        let event = WakeupEvent()
        let task = Task { await event.wait(atMost: .seconds(1_000)) }
        task.cancel()
        await task.value
    }
}
