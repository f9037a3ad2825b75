import Glibc
import Synchronization

/// systemd, which started the process as a service with `Type=notify`: reports the state of the daemon to it, as
/// sd_notify(3) describes.
final class Systemd: Sendable {
    /// The time between two signs of life, half of `WatchdogSec=`; nil if the unit has no watchdog.
    let watchdogInterval: Duration?
    private let socket: Int32
    private let address: sockaddr_un
    private let addressLength: socklen_t
    private let isReady = Atomic(false)
    private let isReloading = Atomic(false)

    /// - Returns: nil if the process is no service that reports its state.
    init?(environment: [String: String]) {
        guard let path = environment["NOTIFY_SOCKET"], path.hasPrefix("/") || path.hasPrefix("@") else { return nil }
        var bytes = Array(path.utf8)
        // The name of an abstract socket (unix(7)).
        if bytes[0] == UInt8(ascii: "@") { bytes[0] = 0 }
        var address = sockaddr_un()
        guard bytes.count < MemoryLayout.size(ofValue: address.sun_path) else { return nil }
        address.sun_family = sa_family_t(AF_UNIX)
        withUnsafeMutableBytes(of: &address.sun_path) { $0.copyBytes(from: bytes) }
        socket = Glibc.socket(AF_UNIX, Int32(SOCK_DGRAM.rawValue) | Int32(SOCK_CLOEXEC.rawValue), 0)
        guard socket >= 0 else { return nil }
        self.address = address
        addressLength = socklen_t(MemoryLayout<sa_family_t>.size + bytes.count)
        let isForThisProcess = environment["WATCHDOG_PID"].map { $0 == "\(getpid())" } ?? true
        let watchdog = isForThisProcess ? environment["WATCHDOG_USEC"].flatMap { Int64($0) } : nil
        watchdogInterval = watchdog.map { .microseconds($0) / 2 }
    }

    deinit { close(socket) }

    /// The service has started. May be repeated, since systemd ignores it then, and a full socket loses it. During a reload,
    /// systemd would take it for the end of the reload.
    ///
    /// - Parameter status: what `systemctl status` shows.
    func ready(status: String) {
        isReady.store(true, ordering: .relaxed)
        if isReloading.load(ordering: .relaxed) {
            send("STATUS=\(status)")
        } else {
            send("READY=1", "STATUS=\(status)")
        }
    }

    func stopping() {
        send("STOPPING=1", "STATUS=shutting down")
    }

    func signOfLife() {
        send("WATCHDOG=1")
    }

    /// A reload begins: `systemctl reload` waits for ``reloaded()``.
    func reloading() {
        // During the start, the end of a reload would count as the end of the start.
        guard isReady.load(ordering: .relaxed) else { return }
        isReloading.store(true, ordering: .relaxed)
        var now = timespec()
        clock_gettime(CLOCK_MONOTONIC, &now)
        send("RELOADING=1", "MONOTONIC_USEC=\(now.tv_sec * 1_000_000 + now.tv_nsec / 1_000)")
    }

    func reloaded() {
        isReloading.store(false, ordering: .relaxed)
        if isReady.load(ordering: .relaxed) { send("READY=1") }
    }

    /// Sends one message, or drops it if systemd does not read: that must not block the daemon.
    private func send(_ assignments: String...) {
        let lines = assignments.map { String($0.map { $0.isNewline ? " " : $0 }) }
        let message = Array(lines.joined(separator: "\n").utf8)
        var address = address
        withUnsafePointer(to: &address) { pointer in
            pointer.withMemoryRebound(to: sockaddr.self, capacity: 1) { generic in
                let flags = Int32(MSG_DONTWAIT) | Int32(MSG_NOSIGNAL)
                _ = sendto(socket, message, message.count, flags, generic, addressLength)
            }
        }
    }
}
