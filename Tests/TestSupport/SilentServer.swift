import Glibc
import Testing

/// A TCP port that accepts connections and never answers, on every address unless one is given. The port is free again after
/// `deinit`.
package final class SilentServer: Sendable {
    package let port: UInt16
    private let descriptor: Int32

    /// - Parameter port: 0 for a free one.
    package init(address: String = "0.0.0.0", port: UInt16 = 0) throws {
        let descriptor = socket(AF_INET, Int32(SOCK_STREAM.rawValue), 0)
        var place = sockaddr_in()
        place.sin_family = sa_family_t(AF_INET)
        place.sin_port = port.bigEndian
        place.sin_addr.s_addr = inet_addr(address)
        var length = socklen_t(MemoryLayout<sockaddr_in>.size)
        let result = withUnsafeMutableBytes(of: &place) { bytes in
            bytes.withMemoryRebound(to: sockaddr.self) { place in
                bind(descriptor, place.baseAddress, length) == 0 && listen(descriptor, 8) == 0
                    && getsockname(descriptor, place.baseAddress, &length) == 0
            }
        }
        try #require(result)
        self.descriptor = descriptor
        self.port = UInt16(bigEndian: place.sin_port)
    }

    deinit {
        close(descriptor)
    }
}
