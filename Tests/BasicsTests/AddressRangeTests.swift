import Basics
import Testing

@Suite("Ranges of addresses")
struct AddressRangeTests {
    @Test(
        "A range contains the addresses with its first bits.",
        arguments: [
            ("10.0.0.0/8", "10.255.255.255", "11.0.0.0"), ("172.16.0.0/12", "172.31.255.255", "172.32.0.0"),
            ("192.0.2.1", "192.0.2.1", "192.0.2.2"), ("0.0.0.0/0", "255.255.255.255", "::"),
            ("fc00::/7", "fdff::1", "fe00::"), ("::1/128", "::1", "::2"),
            ("198.18.0.0/15", "198.19.255.255", "198.20.0.0"),
        ]
    )
    func contains(range: String, inside: String, outside: String) throws {
        let range = try #require(AddressRange(range))
        #expect(range.contains(try #require(IPAddress(inside))))
        #expect(!range.contains(try #require(IPAddress(outside))))
    }

    @Test(
        "Other notations are refused, also set bits after the prefix.",
        arguments: [
            "", "10.0.0.0/33", "10.0.0.0/-1", "10.0.0.0/", "10.0.0.1/8", "10.1/16", "localhost", "::1/129",
            "fe80::1%lo/64",
        ]
    )
    func malformed(text: String) {
        #expect(AddressRange(text) == nil)
    }

    @Test("An IPv4 address in an IPv6 address is that address.")
    func mapped() throws {
        let address = try #require(IPAddress("::ffff:10.1.2.3"))
        #expect(address == IPAddress("10.1.2.3"))
        #expect(address.description == "10.1.2.3")
        #expect(try #require(AddressRange("10.0.0.0/8")).contains(address))
    }

    @Test(
        "Addresses are written as they are read.",
        arguments: ["192.0.2.1", "2001:db8::1", "::", "::1", "255.255.255.255"]
    )
    func roundTrip(text: String) {
        #expect(IPAddress(text)?.description == text)
    }
}
