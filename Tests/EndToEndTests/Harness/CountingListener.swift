import NIOCore
import NIOPosix
import Synchronization

/// A TCP listener that counts connections, and closes each.
final class CountingListener: Sendable {
    private let count = Mutex(0)

    var connections: Int { count.withLock { $0 } }

    static func with<R>(_ body: (_ listener: CountingListener, _ port: Int) async throws -> R) async throws -> R {
        let listener = CountingListener()
        let channel = try await ServerBootstrap(group: Web.eventLoops)
            .childChannelInitializer { channel in
                listener.count.withLock { $0 += 1 }
                return channel.close()
            }
            .bind(host: "127.0.0.1", port: 0).get()
        do {
            let result = try await body(listener, channel.localAddress?.port ?? 0)
            try await channel.close()
            return result
        } catch {
            try await channel.close()
            throw error
        }
    }
}
