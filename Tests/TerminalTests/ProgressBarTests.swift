import Terminal
import Testing

@Suite("A progress bar")
struct ProgressBarTests {
    @Test("A bar shows share, count and remaining time within the width.")
    func half() throws {
        var bar = ProgressBar(title: "sending", total: 200)
        let drawn = bar.advanced(to: 100, after: .seconds(30), width: 80)
        let line = try #require(drawn)
        #expect(line.hasPrefix("sending █"))
        #expect(line.hasSuffix("░ 50% 100/200 30s left"))
        #expect(line.count < 80)
    }

    @Test("A bar is drawn at most ten times a second, and always at the end.")
    func often() {
        var bar = ProgressBar(title: "sending", total: 3)
        let drawn = [(1, 10), (2, 50), (3, 60)].map { done, elapsed in
            bar.advanced(to: done, after: .milliseconds(elapsed), width: 80) != nil
        }
        #expect(drawn == [true, false, true])
    }

    @Test("A bar of zero items is complete.")
    func nothing() {
        var bar = ProgressBar(title: "sending", total: 0)
        let line = bar.advanced(to: 0, after: .zero, width: 80)
        #expect(line?.hasSuffix("100% 0/0") == true)
    }

    @Test("A narrow terminal shows the numbers without a bar.")
    func narrow() {
        var bar = ProgressBar(title: "sending", total: 10)
        let line = bar.advanced(to: 5, after: .seconds(1), width: 30)
        #expect(line == "sending 5/10 50%")
    }
}
