import Basics
import Testing

@Suite struct WallTimeTests {
    @Test(
        "A time is written in UTC and read again.",
        arguments: [
            (0, "1970-01-01T00:00:00.000Z"),
            (-1, "1969-12-31T23:59:59.999999Z"),
            (1_767_323_045_678_000, "2026-01-02T03:04:05.678Z"),
            (1_767_323_045_678_901, "2026-01-02T03:04:05.678901Z"),
            (951_782_400_000_000, "2000-02-29T00:00:00.000Z"),
            (4_107_542_399_000_000, "2100-02-28T23:59:59.000Z"),
            (-62_135_596_800_000_000, "0001-01-01T00:00:00.000Z"),
            (253_402_300_799_999_999, "9999-12-31T23:59:59.999999Z"),
        ] as [(Int64, String)]
    )
    func writtenAndRead(microseconds: Int64, text: String) {
        let time = WallTime(microseconds: microseconds)
        #expect(time.iso8601 == text)
        #expect("\(time)" == text)
        #expect(WallTime(iso8601: text) == time)
    }

    @Test(
        "Other spellings of the same time are read.",
        arguments: [
            "2026-01-02T03:04:05Z", "2026-01-02t03:04:05z", "2026-01-02 03:04:05Z", "2026-01-02T04:34:05+01:30",
            "2026-01-01T22:04:05-05:00", "2026-01-02T03:04:05.000000Z", "2026-01-02T03:04:05.0000009Z", "1767323045",
            "1767323045000",
        ]
    )
    func otherSpellings(text: String) {
        #expect(WallTime(iso8601: text) == WallTime(seconds: 1_767_323_045))
    }

    @Test("A time to the minute and a date alone are read.")
    func shorterSpellings() {
        #expect(WallTime(iso8601: "2026-01-02T03:04Z") == WallTime(seconds: 1_767_323_040))
        #expect(WallTime(iso8601: "2026-01-02") == WallTime(seconds: 1_767_312_000))
        #expect(WallTime(iso8601: "2026-01-02T03:04:05.5Z") == WallTime(milliseconds: 1_767_323_045_500))
    }

    @Test(
        "Text that is not a time is refused.",
        arguments: [
            "", "now", "-", "2026-1-2", "2026-13-01", "2026-00-01", "2026-02-29", "2100-02-29", "2026-04-31",
            "0000-01-01", "2026-01-02T03:04:05", "2026-01-02T24:00:00Z", "2026-01-02T03:60:00Z", "2026-01-02T03:04:60Z",
            "2026-01-02T03:04:05.Z", "2026-01-02T03:04:05Zx", "2026-01-02T03:04:05+25:00", "2026-01-02T03Z",
            "2026-01-02T", "２０２６-01-02", "2026-01-02T03:04:05 Z", "99999999999999999999",
        ]
    )
    func refused(text: String) {
        #expect(WallTime(iso8601: text) == nil)
    }

    @Test("Days of eight centuries come back from their texts.")
    func manyDays() {
        for day in stride(from: -146_097, through: 146_097, by: 11) as StrideThrough<Int64> {
            let time = WallTime(seconds: day * 86_400 + 43_200)
            guard WallTime(iso8601: time.iso8601) == time else {
                Issue.record("\(time) doesn't come back")
                return
            }
        }
    }

    @Test("The magnitude of a number tells seconds from milliseconds.")
    func magnitude() {
        #expect(WallTime(secondsOrMilliseconds: 99_999_999_999) == WallTime(seconds: 99_999_999_999))
        #expect(WallTime(secondsOrMilliseconds: 100_000_000_000) == WallTime(milliseconds: 100_000_000_000))
        #expect(WallTime(secondsOrMilliseconds: -99_999_999_999) == WallTime(seconds: -99_999_999_999))
        #expect(WallTime(secondsOrMilliseconds: -100_000_000_000) == WallTime(milliseconds: -100_000_000_000))
        #expect(WallTime(secondsOrMilliseconds: .min) == WallTime(microseconds: .min))
    }

    @Test("Arithmetic stops at the ends of the range instead of trapping.")
    func saturation() {
        let first = WallTime(microseconds: .min)
        let last = WallTime(microseconds: .max)
        #expect(WallTime(seconds: .max) == last)
        #expect(WallTime(seconds: .min) == first)
        #expect(WallTime(milliseconds: .max) == last)
        #expect(WallTime(milliseconds: .min) == first)
        #expect(last + .seconds(1) == last)
        #expect(first - .seconds(1) == first)
        #expect(first + .seconds(-1) == first)
        #expect(last - .seconds(-1) == last)
        #expect(WallTime(seconds: 0) + .seconds(Int64.max) == last)
        #expect(WallTime(seconds: 0) - .seconds(Int64.max) < WallTime(seconds: 0))
        #expect(last.duration(since: first) == .microseconds(Int64.max))
        #expect(first.duration(since: last) == .microseconds(Int64.min))
    }

    @Test(
        "Every time has a text, also outside the years 1 to 9999; the ends of the range are PostgreSQL's infinities.",
        arguments: [
            (.min, "-infinity"), (.min + 1, "-290308-12-21T19:59:05.224193Z"),
            (-62_167_219_200_000_001, "-0001-12-31T23:59:59.999999Z"),
            (-62_167_219_200_000_000, "0000-01-01T00:00:00.000Z"),
            (253_402_300_800_000_000, "10000-01-01T00:00:00.000Z"),
            (.max - 1, "294247-01-10T04:00:54.775806Z"), (.max, "infinity"),
        ] as [(Int64, String)]
    )
    func extremes(microseconds: Int64, text: String) {
        #expect(WallTime(microseconds: microseconds).iso8601 == text)
    }

    @Test("Whole seconds and milliseconds are rounded down, also before 1970.")
    func rounding() {
        #expect(WallTime(microseconds: 1_999_999).wholeSeconds == 1)
        #expect(WallTime(microseconds: -1).wholeSeconds == -1)
        #expect(WallTime(microseconds: 1_999).wholeMilliseconds == 1)
        #expect(WallTime(microseconds: -1).wholeMilliseconds == -1)
    }

    @Test("A duration later and the same earlier is the same time.")
    func arithmetic() {
        let time = WallTime(seconds: 1_770_000_000)
        #expect(time + .milliseconds(1_500) == WallTime(milliseconds: 1_770_000_001_500))
        #expect(time + .seconds(90) - .seconds(90) == time)
        #expect((time + .seconds(90)).duration(since: time) == .seconds(90))
        #expect(time < time + .microseconds(1))
    }
}
