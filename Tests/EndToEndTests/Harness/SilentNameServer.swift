import FoundationEssentials
import Glibc
import TestSupport
import Testing

/// A name server that answers no question, for processes that are started under ``command``, which gives them a private
/// `/etc/resolv.conf` and `/etc/hosts`.
final class SilentNameServer: Sendable {
    private let directory: TemporaryDirectory
    private let descriptor: Int32

    /// Whether this process may use one: it needs root and mount namespaces.
    static let isPossible: Bool = {
        guard geteuid() == 0 else { return false }
        return system("unshare --mount true 2>/dev/null") == 0
    }()

    /// Listens on a random loopback address.
    init() throws {
        let descriptor = socket(AF_INET, Int32(SOCK_DGRAM.rawValue), 0)
        var host: UInt32 = 0
        var isBound = false
        // Another test run may use the address.
        for _ in 0..<20 where !isBound {
            host = 0x7f00_0000 | UInt32.random(in: 0x1_0000..<0xff_0000)
            var address = sockaddr_in()
            address.sin_family = sa_family_t(AF_INET)
            address.sin_port = in_port_t(53).bigEndian
            address.sin_addr.s_addr = host.bigEndian
            isBound = withUnsafePointer(to: &address) { pointer in
                pointer.withMemoryRebound(to: sockaddr.self, capacity: 1) {
                    bind(descriptor, $0, socklen_t(MemoryLayout<sockaddr_in>.size)) == 0
                }
            }
        }
        try #require(isBound, "no address for a name server: \(String(cString: strerror(errno)))")
        self.descriptor = descriptor
        directory = try TemporaryDirectory()
        let text = (0..<4).map { String(host >> (24 - 8 * UInt32($0)) & 255) }.joined(separator: ".")
        _ = try directory.write("resolv.conf", "nameserver \(text)\noptions timeout:30 attempts:2\n")
        _ = try directory.write("hosts", "127.0.0.1 localhost\n")
    }

    deinit {
        close(descriptor)
    }

    /// A command that runs the rest of a command line with this name server.
    var command: [String] {
        let script =
            "mount --bind \(directory.file("resolv.conf")) /etc/resolv.conf"
            + " && mount --bind \(directory.file("hosts")) /etc/hosts && exec \"$@\""
        return ["unshare", "--mount", "/bin/sh", "-c", script, "sh"]
    }

    /// Resolves a name to 127.0.0.1 without the name server.
    func know(_ name: String) throws {
        try hosts("127.0.0.1 localhost \(name)\n")
    }

    /// Resolves no name without the name server.
    func forget() throws {
        try hosts("127.0.0.1 localhost\n")
    }

    /// The number of questions since the last call.
    var questions: Int {
        var buffer = [UInt8](repeating: 0, count: 512)
        var count = 0
        while recv(descriptor, &buffer, buffer.count, Int32(MSG_DONTWAIT)) > 0 { count += 1 }
        return count
    }

    /// Writes into the existing file, since it is mounted.
    private func hosts(_ text: String) throws {
        let file = open(directory.file("hosts"), O_WRONLY | O_TRUNC | O_CLOEXEC)
        try #require(file >= 0)
        defer { close(file) }
        try #require(write(file, text, text.utf8.count) == text.utf8.count)
    }
}
