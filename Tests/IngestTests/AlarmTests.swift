import Testing

@testable import Ingest

@Suite("An alarm")
struct AlarmTests {
    @Test("Every wait lasts its time when nobody rings, the second like the first.")
    func lasts() async {
        let alarm = Alarm()
        for _ in 0..<3 {
            let start = ContinuousClock.now
            await alarm.wait(atMost: .milliseconds(20))
            #expect(ContinuousClock.now - start >= .milliseconds(20))
        }
    }

    @Test("A ring ends a wait, also one that begins after it, and only one.")
    func ring() async {
        let alarm = Alarm()
        alarm.ring()
        alarm.ring()
        await alarm.wait(atMost: .seconds(1_000))
        async let wait: Void = alarm.wait(atMost: .seconds(1_000))
        alarm.ring()
        await wait
        let start = ContinuousClock.now
        await alarm.wait(atMost: .milliseconds(20))
        #expect(ContinuousClock.now - start >= .milliseconds(20))
    }

    @Test("The cancellation of the waiting task ends its wait.")
    func cancellation() async {
        let alarm = Alarm()
        let task = Task { await alarm.wait(atMost: .seconds(1_000)) }
        task.cancel()
        await task.value
    }
}
