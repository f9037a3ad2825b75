import Basics
import Testing

@testable import WebClient

@Suite("Addresses that siwad connects to")
struct AddressPolicyTests {
    /// The first and the last address of each denied range.
    private static let edges = [
        "0.0.0.0", "0.255.255.255", "10.0.0.0", "10.255.255.255", "100.64.0.0", "100.127.255.255", "127.0.0.0",
        "127.255.255.255", "169.254.0.0", "169.254.255.255", "172.16.0.0", "172.31.255.255", "192.0.0.0", "192.0.0.255",
        "192.0.2.0", "192.0.2.255", "192.88.99.0", "192.88.99.255", "192.168.0.0", "192.168.255.255", "198.18.0.0",
        "198.19.255.255", "198.51.100.0", "198.51.100.255", "203.0.113.0", "203.0.113.255", "224.0.0.0",
        "239.255.255.255", "240.0.0.0", "255.255.255.255",
        "::", "::1", "fe80::", "febf:ffff::", "fc00::", "fdff:ffff::", "ff00::", "ffff::", "100::", "100::ffff",
        "2001:db8::", "2001:db8:ffff::", "2002::", "2002:ffff::", "64:ff9b::", "64:ff9b::7f00:1", "64:ff9b:1::",
        "64:ff9b:1:ffff::", "5f00::", "5f00:ffff::",
    ]
    /// Neighbours of the denied ranges.
    private static let publicAddresses = [
        "1.0.0.0", "9.255.255.255", "11.0.0.0", "100.63.255.255", "100.128.0.0", "126.255.255.255", "128.0.0.0",
        "169.253.255.255", "169.255.0.0", "172.15.255.255", "172.32.0.0", "192.0.1.0", "192.0.3.0", "192.88.98.255",
        "192.88.100.0", "192.167.255.255", "192.169.0.0", "198.17.255.255", "198.20.0.0", "198.51.99.255",
        "198.51.101.0", "203.0.112.255", "203.0.114.0", "223.255.255.255", "17.253.144.10", "2606:4700::1111",
        "fbff::", "fec0::", "2001:db7::", "2001:db9::", "2003::", "64:ff9b:0:1::", "64:ff9b:2::", "5eff::", "5f01::",
        "100:0:0:1::",
    ]

    private func refusal(_ text: String, by policy: AddressPolicy = AddressPolicy(), isEncrypted: Bool = true) throws
        -> String?
    {
        policy.refusal(of: try #require(IPAddress(text)), isEncrypted: isEncrypted)?.description
    }

    @Test("Every range of special addresses is refused, with the setting that allows it.", arguments: edges)
    func denied(text: String) throws {
        let message = try #require(try refusal(text))
        #expect(message.contains("\(text) is not a public address"))
        #expect(message.contains("SIWAD_DELIVERY_ALLOW=\(text)/\(text.contains(":") ? 128 : 32)"))
    }

    @Test("Public addresses are called by https: and not by http:.", arguments: publicAddresses)
    func open(text: String) throws {
        #expect(try refusal(text) == nil)
        let message = try #require(try refusal(text, isEncrypted: false))
        #expect(message.contains("use https:") && message.contains("SIWAD_DELIVERY_ALLOW=\(text)/"))
    }

    @Test(
        "Mapped IPv4 addresses are judged as IPv4.",
        arguments: ["::ffff:127.0.0.1", "::ffff:7f00:1", "::ffff:10.0.0.1"]
    )
    func mapped(text: String) throws {
        #expect(try refusal(text) != nil)
        let policy = AddressPolicy(allowed: [
            try #require(AddressRange("10.0.0.0/8")), try #require(AddressRange("127.0.0.1")),
        ])
        #expect(try refusal(text, by: policy) == nil)
    }

    @Test("Allowed ranges are called by both schemes, and their neighbours are not.")
    func allowed() throws {
        let policy = AddressPolicy(allowed: [try #require(AddressRange("10.1.0.0/16"))])
        for isEncrypted in [true, false] {
            #expect(try refusal("10.1.255.255", by: policy, isEncrypted: isEncrypted) == nil)
            #expect(try refusal("10.2.0.0", by: policy, isEncrypted: isEncrypted) != nil)
        }
    }
}
