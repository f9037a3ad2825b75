import Basics

/// The source of a key set: `https:`, `file:`, or `http:` to a loopback address.
///
/// A server that can replace the key set can sign notifications, so no key set crosses a network unencrypted.
package struct KeySetURL: Sendable, Hashable, CustomStringConvertible {
    enum Source: Sendable, Hashable {
        case web(String)
        case file(String)
    }

    let source: Source

    /// - Throws: `invalidURL` with the forms that are allowed.
    package init(parsing text: String) throws(WebClientError) {
        guard text.utf8.allSatisfy({ $0 > 0x20 && $0 < 0x7F }), let scheme = text.firstRange(of: ":") else {
            throw Self.invalid("it is not a URL")
        }
        let rest = text[scheme.upperBound...]
        switch text[..<scheme.lowerBound].lowercased() {
        case "https":
            _ = try Self.host(rest)
            source = .web(text)
        case "http":
            guard IPAddress.isLoopback(host: try Self.host(rest)) else {
                throw Self.invalid("http: is for loopback addresses only")
            }
            source = .web(text)
        case "file":
            source = .file(try Self.path(rest))
        default:
            throw Self.invalid("its scheme is not known")
        }
    }

    package var description: String {
        switch source {
        case .web(let url): url
        case .file(let path): "file://\(path)"
        }
    }

    /// In lower case and without brackets; nil for a file.
    var host: String? {
        guard case .web(let address) = source, let scheme = address.firstRange(of: ":") else { return nil }
        // Never fails: the host was checked when the URL was read.
        return try? Self.host(address[scheme.upperBound...])
    }

    private static func invalid(_ reason: String) -> WebClientError {
        WebClientError(
            .invalidURL,
            "the URL of the key set is not usable: \(reason); write https://…, file:///path, or http:// to a loopback "
                + "address"
        )
    }

    /// The host of `//host[:port][/…]`, in lower case and without brackets.
    private static func host(_ rest: Substring) throws(WebClientError) -> String {
        guard rest.hasPrefix("//") else { throw invalid("it has no host") }
        let authority = rest.dropFirst(2).prefix { $0 != "/" && $0 != "?" && $0 != "#" }
        guard !authority.contains("@") else { throw invalid("it must not name a user") }
        var host = authority.prefix { $0 != ":" }
        var port = authority[host.endIndex...]
        if authority.hasPrefix("["), let end = authority.firstIndex(of: "]") {
            host = authority[..<end].dropFirst()
            port = authority[end...].dropFirst()
        }
        guard !host.isEmpty else { throw invalid("it has no host") }
        guard port.isEmpty || port.hasPrefix(":") && UInt16(port.dropFirst()) != nil else {
            throw invalid("its port is not a number")
        }
        return host.lowercased()
    }

    /// The path of `///path`, `//localhost/path` or `/path`, percent-decoded.
    private static func path(_ rest: Substring) throws(WebClientError) -> String {
        var path = rest
        if path.hasPrefix("//") {
            path = path.dropFirst(2)
            if path.lowercased().hasPrefix("localhost/") {
                path = path.dropFirst("localhost".count)
            }
        }
        guard path.hasPrefix("/"), let decoded = path.percentDecoded, !decoded.utf8.contains(0) else {
            throw invalid("a file: URL needs an absolute path")
        }
        return decoded
    }
}
