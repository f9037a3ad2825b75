import JOSE
import Testing

@Suite struct JSONNumberTests {
    private func integer(_ text: String) -> Int64?? {
        JSONTests.parse(text).map(\.integer)
    }

    @Test("An integer is read in every spelling of it.")
    func integers() {
        let spellings: [String: Int64] = [
            "0": 0, "-0": 0, "0.0": 0, "0e5": 0, "-0.00e-5": 0, "1": 1, "-1": -1, "1.0": 1, "1.5e3": 1500,
            "1500e-2": 15,
            "1E2": 100, "1e+2": 100, "0.001e3": 1, "0.00100e5": 100, "123.450e2": 12345, "10e-1": 1, "1000.000e-3": 1,
            "1657617063012": 1_657_617_063_012, "9223372036854775807": .max, "-9223372036854775808": .min,
            "9223372036854775807.000": .max, "922337203685477580.7e1": .max, "-92233720368547758080e-1": .min,
            "999999999999999999": 999_999_999_999_999_999, "1000000000000000000": 1_000_000_000_000_000_000,
            "1e18": 1_000_000_000_000_000_000, "0e99999999999999999999": 0, "0e-99999999999999999999": 0,
        ]
        for (text, value) in spellings { #expect(integer(text) == .some(.some(value)), "\(text)") }
    }

    @Test(
        "A number that is no 64-bit integer is JSON but no integer, however large its exponent, and never traps.",
        arguments: [
            "0.5", "-1.25", "1e-1", "15e-1", "9223372036854775808", "-9223372036854775809", "1e19", "9.3e18", "1e400",
            "-1e400", "1e-400",
            "1e999999999999999999999999", "1e-999999999999999999999999", "123456789012345678901234567890",
            "0.00000000000000000001",
            "18446744073709551616", "99999999999999999999e-1", "1.0000000000000000000000001",
        ]
    )
    func others(text: String) {
        #expect(integer(text) == .some(nil))
    }

    @Test("A number of sixty thousand digits is read without harm.")
    func long() {
        let digits = String(repeating: "9", count: 60_000)
        #expect(integer(digits) == .some(nil))
        #expect(integer("0." + digits) == .some(nil))
        #expect(integer("1e" + digits) == .some(nil))
        #expect(integer("1" + String(repeating: "0", count: 60_000) + "e-60000") == .some(1))
        #expect(integer("1." + String(repeating: "0", count: 60_000)) == .some(1))
    }

    @Test(
        "A number that RFC 8259 doesn't spell is refused.",
        arguments: [
            "01", "-01", "00", "+1", "1.", ".1", "-.1", "1e", "1e-", "1.e1", "0x1", "1e1.5", "1f", "--1", "-", "1.2.3",
            "٣",
        ]
    )
    func malformed(text: String) {
        #expect(JSONTests.parse(text) == nil)
    }

    @Test("A number keeps its spelling in a tree.")
    func spelling() {
        #expect(JSONTests.parse("[1.50,1E400]")?.compactText == "[1.50,1E400]")
        #expect(JSONNumber(-5).text == "-5")
        #expect(JSONNumber(-5).integer == -5)
    }
}
