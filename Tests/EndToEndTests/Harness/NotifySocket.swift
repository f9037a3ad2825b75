import Glibc
import Synchronization
import TestSupport
import Testing

/// The socket by which systemd gets reports of a service (sd_notify(3)).
final class NotifySocket: Sendable {
    /// The value of `NOTIFY_SOCKET`.
    let name: String
    private let descriptor: Int32
    private let directory: TemporaryDirectory
    private let received = Mutex<[String]>([])

    /// - Parameter isAbstract: whether its name is outside of the file system (unix(7)).
    init(isAbstract: Bool = false) throws {
        directory = try TemporaryDirectory()
        let path = directory.file("notify")
        name = isAbstract ? "@\(path)" : path
        descriptor = socket(AF_UNIX, Int32(SOCK_DGRAM.rawValue), 0)
        try #require(descriptor >= 0)
        var bytes = Array(name.utf8)
        if isAbstract { bytes[0] = 0 }
        var address = sockaddr_un()
        address.sun_family = sa_family_t(AF_UNIX)
        withUnsafeMutableBytes(of: &address.sun_path) { $0.copyBytes(from: bytes) }
        let length = socklen_t(MemoryLayout<sa_family_t>.size + bytes.count)
        let status = withUnsafePointer(to: &address) { pointer in
            pointer.withMemoryRebound(to: sockaddr.self, capacity: 1) { bind(descriptor, $0, length) }
        }
        try #require(status == 0, "\(String(cString: strerror(errno)))")
    }

    deinit { close(descriptor) }

    /// The assignments of all messages so far, in their order.
    var assignments: [String] {
        var buffer = [UInt8](repeating: 0, count: 4096)
        return received.withLock { received in
            while true {
                let count = recv(descriptor, &buffer, buffer.count, Int32(MSG_DONTWAIT))
                guard count > 0 else { return received }
                received += String(decoding: buffer[..<count], as: UTF8.self).split(separator: "\n").map(String.init)
            }
        }
    }

    /// The last status; nil before the first one.
    var status: String? {
        assignments.last { $0.hasPrefix("STATUS=") }.map { String($0.dropFirst(7)) }
    }
}
