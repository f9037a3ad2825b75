import Basics

/// The URL of an application's endpoint, `https:` or `http:`. Its form is checked here; ``AddressPolicy`` decides about the
/// addresses of its host.
package struct EndpointURL: Sendable, Hashable, CustomStringConvertible {
    /// As sent, with the host in lower case.
    let text: String
    /// In lower case, without brackets.
    package let host: String
    package let port: Int
    package let isEncrypted: Bool
    /// Without the query, which may contain a secret.
    package let description: String

    /// - Throws: `invalidURL` with the reason.
    package init(parsing text: String) throws(WebClientError) {
        guard text.utf8.count <= 2_048 else { throw Self.invalid("it is longer than 2,048 characters") }
        guard text.utf8.allSatisfy({ $0 > 0x20 && $0 < 0x7F }), let scheme = text.firstRange(of: "://") else {
            throw Self.invalid("it is not a URL: it must begin with https://, or with http:// where that is allowed")
        }
        switch text[..<scheme.lowerBound].lowercased() {
        case "https": isEncrypted = true
        case "http": isEncrypted = false
        default: throw Self.invalid("its scheme is not https")
        }
        let rest = text[scheme.upperBound...]
        guard !rest.contains("#") else { throw Self.invalid("it must have no fragment (#…)") }
        let authority = rest.prefix { $0 != "/" && $0 != "?" }
        guard !authority.contains("@") else { throw Self.invalid("it must not name a user") }
        let (host, port) = try Self.split(authority)
        self.host = host.lowercased()
        guard let number = port.isEmpty ? (isEncrypted ? 443 : 80) : Int(port), 1...65_535 ~= number else {
            throw Self.invalid("its port is not a number from 1 to 65535")
        }
        self.port = number
        let name = host.contains(":") ? "[\(self.host)]" : self.host
        let place = "\(isEncrypted ? "https" : "http")://\(name)" + (port.isEmpty ? "" : ":\(number)")
        let path = rest[authority.endIndex...]
        // The client requires a path in front of a query.
        self.text = place + (path.hasPrefix("/") ? "" : "/") + path
        description = place + path.prefix { $0 != "?" }
    }

    /// The address, if the host is one.
    var literal: IPAddress? { IPAddress(host) }

    /// Host and port, both as written; the host without brackets.
    private static func split(_ authority: Substring) throws(WebClientError) -> (Substring, Substring) {
        var host = authority.prefix { $0 != ":" }
        var port = authority[host.endIndex...]
        if authority.hasPrefix("[") {
            guard let end = authority.firstIndex(of: "]") else { throw invalid("its host has no closing bracket") }
            host = authority[..<end].dropFirst()
            port = authority[end...].dropFirst()
            guard !host.contains("%") else { throw invalid("its address must have no zone (%…)") }
            guard host.contains(":"), IPAddress(host) != nil else { throw invalid("its host is not an address") }
        } else {
            // Anything else could be read as another host by another parser.
            let isName = host.utf8.allSatisfy { byte in
                switch byte {
                case UInt8(ascii: "a")...UInt8(ascii: "z"), UInt8(ascii: "A")...UInt8(ascii: "Z"),
                    UInt8(ascii: "0")...UInt8(ascii: "9"), UInt8(ascii: "-"), UInt8(ascii: "."), UInt8(ascii: "_"):
                    true
                default: false
                }
            }
            guard !host.isEmpty, isName else {
                throw invalid("its host is not a name in ASCII (write xn--… for others)")
            }
        }
        guard port.isEmpty || port.hasPrefix(":") && port.count > 1 && port.dropFirst().allSatisfy(\.isWholeNumber)
        else {
            throw invalid("its port is not a number from 1 to 65535")
        }
        return (host, port.dropFirst())
    }

    private static func invalid(_ reason: String) -> WebClientError {
        WebClientError(.invalidURL, "the URL of the endpoint is not usable: \(reason)")
    }
}
