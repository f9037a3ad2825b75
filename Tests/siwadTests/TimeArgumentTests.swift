import Basics
import Testing

@testable import siwad

@Suite("A time on the command line")
struct TimeArgumentTests {
    /// The first time of a day in UTC.
    private static func midnight(of time: WallTime) throws -> WallTime {
        let day = "\(time)".prefix(10)
        return try #require(WallTime(iso8601: "\(day)T00:00:00Z"))
    }

    /// Expects a time between the values of `expected` for the time before and after the argument is read.
    private func expect(_ text: String, _ expected: (WallTime) throws -> WallTime) throws {
        let before = try expected(.now())
        let time = try WallTime(argument: text)
        let after = try expected(.now())
        #expect(before <= time && time <= after, "\(text) is \(time)")
    }

    @Test("today and yesterday are midnights in UTC.")
    func days() throws {
        try expect("today") { now in try Self.midnight(of: now) }
        try expect("yesterday") { now in try Self.midnight(of: Self.midnight(of: now) - .seconds(1)) }
    }

    @Test("A duration is that long ago, and now is now.")
    func ago() throws {
        for (text, seconds) in [("now", 0), ("30m", 1_800), ("1h", 3_600), ("1h30m", 5_400), ("2d", 172_800)] {
            try expect(text) { now in now - .seconds(seconds) }
        }
    }

    @Test(
        "A date is its midnight, and a time without a zone is in UTC.",
        arguments: ["2026-01-02", "2026-01-02 00:00", "2026-01-02T00:00:00Z", "2026-01-02T01:00:00+01:00"]
    )
    func zone(text: String) throws {
        #expect(try WallTime(argument: text) == WallTime(seconds: 1_767_312_000))
    }
}
