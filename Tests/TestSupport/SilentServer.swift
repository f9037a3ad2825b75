import Glibc
import Testing

/// A TCP port on every address that accepts connections and never answers. The port is free again after `deinit`.
package final class SilentServer: Sendable {
    /// Chosen by the kernel.
    package let port: UInt16
    private let descriptor: Int32

    package init() throws {
        let descriptor = socket(AF_INET, Int32(SOCK_STREAM.rawValue), 0)
        // The kernel chooses a free port for an unbound socket.
        try #require(listen(descriptor, 8) == 0)
        var address = sockaddr_in()
        var length = socklen_t(MemoryLayout<sockaddr_in>.size)
        let result = withUnsafeMutableBytes(of: &address) { bytes in
            bytes.withMemoryRebound(to: sockaddr.self) { getsockname(descriptor, $0.baseAddress, &length) }
        }
        try #require(result == 0)
        self.descriptor = descriptor
        port = UInt16(bigEndian: address.sin_port)
    }

    deinit {
        close(descriptor)
    }
}
