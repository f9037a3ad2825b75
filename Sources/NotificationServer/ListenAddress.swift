/// Where a server listens.
package struct ListenAddress: Sendable, Equatable, CustomStringConvertible {
    /// A name or a numeric address, without brackets.
    package let host: String
    /// 0 lets the system choose.
    package let port: Int
    /// The setting that says so, for error texts.
    package let setting: String

    /// An address from its parts.
    package init(host: String, port: Int, setting: String = "the listen address") {
        self.host = host
        self.port = port
        self.setting = setting
    }

    /// Reads `127.0.0.1:8080`, `[::1]:8080` or `name:8080`.
    ///
    /// - Throws: `invalidAddress`, naming `setting`.
    package init(parsing text: String, setting: String) throws(ServerError) {
        let colon = text.lastIndex(of: ":")
        let port = colon.flatMap { Self.port(text[text.index(after: $0)...]) }
        var host = colon.map { text[..<$0] } ?? ""
        if host.hasPrefix("["), host.hasSuffix("]") {
            host = host.dropFirst().dropLast()
        } else if host.contains(":") {
            host = ""
        }
        let isPlain = host.utf8.allSatisfy { $0 > 0x20 && $0 < 0x7F && $0 != UInt8(ascii: "/") }
        guard let port, !host.isEmpty, isPlain else {
            throw ServerError(
                .invalidAddress,
                "\(setting) is not an address to listen on; write host:port, such as 127.0.0.1:8080"
            )
        }
        self.init(host: String(host), port: port, setting: setting)
    }

    /// As it is configured.
    package var description: String {
        host.contains(":") ? "[\(host)]:\(port)" : "\(host):\(port)"
    }

    private static func port(_ text: Substring) -> Int? {
        guard !text.isEmpty, text.utf8.allSatisfy({ (0x30...0x39).contains($0) }) else { return nil }
        return UInt16(text).map(Int.init)
    }
}
