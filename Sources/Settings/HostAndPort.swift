/// A host and a port to listen on: `127.0.0.1:8080`, `[::1]:8080`, `0.0.0.0:443`. Port 0 lets the system choose.
package struct HostAndPort: Sendable, Hashable, CustomStringConvertible {
    /// A host name or an address, without brackets.
    package let host: String
    /// 0 to 65535.
    package let port: Int

    /// The address of this host and port.
    package init(host: String, port: Int) {
        self.host = host
        self.port = port
    }

    /// As one writes it, an IPv6 address in brackets.
    package var description: String {
        host.contains(":") ? "[\(host)]:\(port)" : "\(host):\(port)"
    }
}

extension HostAndPort {
    init(parsing text: String) throws(MalformedValue) {
        let malformed = MalformedValue("write host:port, such as 127.0.0.1:8080 or [::1]:8080")
        guard let colon = text.lastIndex(of: ":") else { throw malformed }
        let digits = text[text.index(after: colon)...]
        guard
            (1...5).contains(digits.utf8.count),
            digits.utf8.allSatisfy({ $0 >= UInt8(ascii: "0") && $0 <= UInt8(ascii: "9") }),
            let port = Int(digits),
            port <= 65535
        else { throw MalformedValue("the port must be a number from 0 to 65535, as in 127.0.0.1:8080") }

        var host = text[..<colon]
        if host.first == "[", host.last == "]" {
            host = host.dropFirst().dropLast()
            guard host.contains(":") else { throw malformed }
        } else if host.contains(":") {
            throw MalformedValue("write an IPv6 address in brackets, such as [::1]:8080")
        }
        guard !host.isEmpty, host.utf8.allSatisfy(Self.isHostByte) else { throw malformed }
        self.init(host: String(host), port: port)
    }

    private static func isHostByte(_ byte: UInt8) -> Bool {
        switch byte {
        case UInt8(ascii: "a")...UInt8(ascii: "z"), UInt8(ascii: "A")...UInt8(ascii: "Z"),
            UInt8(ascii: "0")...UInt8(ascii: "9"), UInt8(ascii: "."), UInt8(ascii: "-"), UInt8(ascii: "_"),
            UInt8(ascii: ":"), UInt8(ascii: "%"):
            true
        default:
            false
        }
    }
}
