import Basics
import Synchronization
import Testing

@testable import Telemetry

@Suite("The log")
struct LogTests {
    private final class Lines: Sendable {
        private let lines = Mutex<[String]>([])

        var all: [String] { lines.withLock { $0 } }

        func log(_ format: LogFormat, _ level: LogLevel = .info) -> Log {
            Log(label: "siwad", level: level, format: format) { [self] record in
                lines.withLock { $0.append(String(decoding: record, as: UTF8.self)) }
            }
        }
    }

    /// Characters that end a record, begin another, move the cursor or reorder the line.
    static let hostile = "a\nb\r\u{0}\u{1B}[2J\u{7F}\u{85}\u{9B}31m\u{2028}\u{2029}\u{202E}\u{2066}\u{FEFF}\"\\"

    @Test("A record in text has its time, level, name, message and fields.")
    func text() throws {
        let lines = Lines()
        lines.log(.text).warning("spool is filling", ["bytes": "12", "folder": "a b", "empty": "", "pair": "a=b"])
        let line = try #require(lines.all.first)
        let expected = #" warning siwad: spool is filling bytes=12 empty="" folder="a b" pair="a=b""# + "\n"
        #expect(line.hasSuffix(expected))
        #expect(line.prefix { $0 != " " }.count == "2026-01-02T03:04:05.678Z".count)
    }

    @Test("A JSON record has a member for each field, and fields cannot replace its own members.")
    func json() throws {
        let lines = Lines()
        lines.log(.json).error("it failed", ["level": "forged", "reason": "x"])
        let line = try #require(lines.all.first)
        let expected =
            #""level":"error","logger":"siwad","message":"it failed","level_":"forged","reason":"x"}"# + "\n"
        #expect(line.hasSuffix(expected))
        #expect(line.hasPrefix(#"{"time":""#))
    }

    @Test("No message, field or key can forge a record or reach a terminal.", arguments: LogFormat.allCases)
    func injection(_ format: LogFormat) throws {
        let lines = Lines()
        lines.log(format).info(Self.hostile, ["key": Self.hostile])
        let line = try #require(lines.all.first)
        #expect(lines.all.count == 1)
        #expect(line.last == "\n")
        let hidden = line.dropLast().unicodeScalars.filter {
            $0.properties.generalCategory == .control || $0.properties.generalCategory == .format
                || $0.properties.generalCategory == .lineSeparator
                || $0.properties.generalCategory == .paragraphSeparator
        }
        #expect(hidden.isEmpty)
    }

    @Test("A long text is shortened.")
    func length() throws {
        let lines = Lines()
        lines.log(.text).info(String(repeating: "x", count: 1_000_000))
        #expect(try #require(lines.all.first).count < 5000)
    }

    @Test("A message below the level is not evaluated.")
    func level() {
        let lines = Lines()
        let log = lines.log(.text, .warning)
        func unwanted() -> String {
            Issue.record("put together")
            return ""
        }
        log.debug(unwanted())
        log.info(unwanted())
        log.notice(unwanted())
        log.error("wanted")
        #expect(lines.all.count == 1)
        lines.log(.text, .debug).quieter(than: .error).info(unwanted())
        #expect(lines.all.count == 1)
    }

    @Test(
        "Times are written in UTC.",
        arguments: [
            (0, "1970-01-01T00:00:00.000Z"), (1_767_323_045_678, "2026-01-02T03:04:05.678Z"),
            (951_782_400_000, "2000-02-29T00:00:00.000Z"), (-1, "1969-12-31T23:59:59.999Z"),
            (4_102_444_799_999, "2099-12-31T23:59:59.999Z"),
        ]
    )
    func time(_ milliseconds: Int64, _ text: String) {
        #expect(WallTime(milliseconds: milliseconds).iso8601 == text)
    }
}
