import Glibc

/// An IPv4 or IPv6 address. An IPv6 address that contains a mapped IPv4 address (RFC 4291 §2.5.5.2) is that IPv4 address,
/// because packets to it go there.
package struct IPAddress: Sendable, Hashable, CustomStringConvertible {
    /// 4 or 16 bytes.
    package let bytes: [UInt8]

    package init(bytes: [UInt8]) {
        precondition(bytes.count == 4 || bytes.count == 16, "an address has 4 or 16 bytes")
        let mapped: [UInt8] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF]
        self.bytes = bytes.starts(with: mapped) && bytes.count == 16 ? Array(bytes.dropFirst(12)) : bytes
    }

    /// Parses `192.0.2.1` or `2001:db8::1`; no zone, no brackets, and no other notation of IPv4.
    package init?(_ text: some StringProtocol) {
        let text = String(text)
        var bytes = [UInt8](repeating: 0, count: 16)
        if inet_pton(AF_INET, text, &bytes) == 1 {
            self.init(bytes: Array(bytes.prefix(4)))
        } else if inet_pton(AF_INET6, text, &bytes) == 1 {
            self.init(bytes: bytes)
        } else {
            return nil
        }
    }

    /// True for `localhost`, `::1` and addresses in 127.0.0.0/8.
    package static func isLoopback(host: String) -> Bool {
        guard let address = IPAddress(host) else { return host.lowercased() == "localhost" }
        return address.bytes.count == 4 ? address.bytes[0] == 127 : address.description == "::1"
    }

    package var description: String {
        var text = [CChar](repeating: 0, count: Int(INET6_ADDRSTRLEN))
        inet_ntop(bytes.count == 4 ? AF_INET : AF_INET6, bytes, &text, socklen_t(text.count))
        return String(decoding: text.prefix { $0 != 0 }.map(UInt8.init(bitPattern:)), as: UTF8.self)
    }
}

/// The addresses with the same first bits, such as `10.0.0.0/8` (CIDR, RFC 4632).
package struct AddressRange: Sendable, Hashable, CustomStringConvertible {
    private let first: IPAddress
    private let length: Int

    /// Only `address`.
    package init(_ address: IPAddress) {
        self.init(first: address, length: address.bytes.count * 8)
    }

    private init(first: IPAddress, length: Int) {
        self.first = first
        self.length = length
    }

    /// Parses `10.0.0.0/8`, `fd00::/8`, or an address alone. Fails if bits after the prefix are set, which is usually a
    /// mistake.
    package init?(_ text: some StringProtocol) {
        let parts = text.split(separator: "/", maxSplits: 1, omittingEmptySubsequences: false)
        guard let address = parts.first.flatMap({ IPAddress($0) }) else { return nil }
        let bits = address.bytes.count * 8
        guard parts.count == 2 else {
            self.init(address)
            return
        }
        guard let length = Int(parts[1]), 0...bits ~= length, parts[1].allSatisfy(\.isWholeNumber) else { return nil }
        guard (length..<bits).allSatisfy({ !Self.isSet($0, in: address) }) else { return nil }
        self.init(first: address, length: length)
    }

    package func contains(_ address: IPAddress) -> Bool {
        guard address.bytes.count == first.bytes.count else { return false }
        let (whole, rest) = length.quotientAndRemainder(dividingBy: 8)
        guard address.bytes.prefix(whole) == first.bytes.prefix(whole) else { return false }
        return rest == 0 || (address.bytes[whole] ^ first.bytes[whole]) >> (8 - rest) == 0
    }

    package var description: String { "\(first)/\(length)" }

    private static func isSet(_ bit: Int, in address: IPAddress) -> Bool {
        address.bytes[bit / 8] >> (7 - bit % 8) & 1 == 1
    }
}
