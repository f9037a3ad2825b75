package import Basics

/// Decides which addresses siwad connects to for the endpoints of applications: public ones by `https:`, and the ones that
/// the operator of the daemon allows. So a person who may write the table of endpoints can't reach the internal network.
package struct AddressPolicy: Sendable, Equatable {
    /// Why siwad doesn't connect to an address.
    package struct Refusal: Sendable, Equatable, CustomStringConvertible {
        package let cause: String
        /// The next step.
        package let remedy: String

        package var description: String { "\(cause); \(remedy)" }
    }

    /// `SIWAD_DELIVERY_ALLOW`.
    package let allowed: [AddressRange]

    package init(allowed: [AddressRange] = []) {
        self.allowed = allowed
    }

    /// nil for an address that siwad connects to.
    package func refusal(of address: IPAddress, isEncrypted: Bool) -> Refusal? {
        if allowed.contains(where: { $0.contains(address) }) { return nil }
        let remedy = "SIWAD_DELIVERY_ALLOW=\(AddressRange(address)) allows it"
        if Self.denied.contains(where: { $0.contains(address) }) {
            return Refusal(cause: "\(address) is not a public address", remedy: remedy)
        }
        guard !isEncrypted else { return nil }
        return Refusal(cause: "http: to \(address) is not encrypted", remedy: "use https:, or \(remedy)")
    }

    /// The addresses that the IANA registries of special-purpose addresses list as not globally reachable, and addresses
    /// that lead to other addresses (6to4, NAT64).
    static let denied: [AddressRange] = [
        "0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.0.0.0/24",
        "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24",
        "224.0.0.0/4", "240.0.0.0/4",
        "::/128", "::1/128", "fe80::/10", "fc00::/7", "ff00::/8", "100::/64", "2001:db8::/32", "2002::/16",
        "64:ff9b::/96",
        "64:ff9b:1::/48", "5f00::/16",
    ].map { text in
        guard let range = AddressRange(text) else { preconditionFailure("\(text) is not a range of addresses") }
        return range
    }
}
