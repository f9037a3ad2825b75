import NIOCore
import Synchronization

/// The connections of a server. At the limit, the one that was silent for longest is closed to make room; if none is silent, the
/// new one.
final class OpenConnections: Sendable {
    private struct Connection {
        let channel: any Channel
        var isBusy = false
        var since = NIODeadline.now()
    }

    private let limit: Int
    private let connections = Mutex<[ObjectIdentifier: Connection]>([:])

    init(limit: Int) {
        self.limit = limit
    }

    func add(_ channel: any Channel) {
        let silent = connections.withLock { connections -> [any Channel]? in
            let silent = connections.count < limit ? [] : Self.silentest(of: connections, limit / 16 + 1)
            guard connections.count < limit || !silent.isEmpty else { return nil }
            for channel in silent { connections[ObjectIdentifier(channel)] = nil }
            connections[ObjectIdentifier(channel)] = Connection(channel: channel)
            return silent
        }
        guard let silent else {
            // It is not registered yet and can't be closed in this iteration.
            channel.eventLoop.execute { channel.close(promise: nil) }
            return
        }
        for channel in silent { channel.close(promise: nil) }
        channel.closeFuture.whenComplete { _ in
            self.connections.withLock { _ = $0.removeValue(forKey: ObjectIdentifier(channel)) }
        }
    }

    /// A few more than needed, because finding them is a scan of all connections.
    private static func silentest(of connections: [ObjectIdentifier: Connection], _ count: Int) -> [any Channel] {
        connections.values.filter { !$0.isBusy }.sorted { $0.since < $1.since }.prefix(count).map(\.channel)
    }

    /// - Parameter isBusy: true while a request is served, so that the connection is not closed for another one.
    func mark(_ channel: any Channel, isBusy: Bool) {
        connections.withLock { connections in
            connections[ObjectIdentifier(channel)]?.isBusy = isBusy
            connections[ObjectIdentifier(channel)]?.since = .now()
        }
    }
}
