import Testing

@testable import Settings

@Suite("A value")
struct ValueTests {
    @Test("can be a duration of several units.")
    func duration() throws {
        let any = Duration.zero...Duration.seconds(1_000_000_000)
        #expect(try ValueParser.duration("1h30m", in: any) == .seconds(5_400))
        #expect(try ValueParser.duration("500ms", in: any) == .milliseconds(500))
        #expect(try ValueParser.duration("400d", in: any) == .seconds(400 * 86_400))
    }

    @Test(
        "is printed in the largest unit that divides it.",
        arguments: ["0s", "500ms", "90s", "5m", "1h", "400d", "1500ms"]
    )
    func short(text: String) throws {
        let any = Duration.zero...Duration.seconds(1_000_000_000)
        #expect(try ValueParser.duration(text, in: any).short == text)
    }

    @Test(
        "can be a size with a binary or a decimal unit.",
        arguments: [("1GiB", 1_073_741_824), ("64kib", 65_536), ("1GB", 1_000_000_000), ("17", 17)]
    )
    func size(text: String, bytes: Int64) throws {
        #expect(try ValueParser.size(text) == bytes)
    }

    @Test("can be an address, with IPv6 in brackets.", arguments: ["127.0.0.1:8080", "[::1]:0", "localhost:65535"])
    func address(text: String) throws {
        #expect(try HostAndPort(parsing: text).description == text)
    }
}
