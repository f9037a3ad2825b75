import NIOCore
import NIOPosix
import Postgres

/// A TCP proxy before a PostgreSQL server that simulates network faults.
final class FaultyProxy: Sendable {
    /// The treatment of bytes and of new connections.
    enum Behaviour: Sendable {
        /// Forwards everything.
        case pass
        /// Forwards the server's bytes after a delay.
        case delay(TimeAmount)
        /// Accepts everything and forwards nothing, not even the end of a connection. Held bytes are forwarded when the
        /// behaviour changes.
        case holdEverything
    }

    /// The port on 127.0.0.1.
    let port: Int
    private let channel: any Channel
    private let core: NIOLoopBound<Core>

    /// Runs `body` with a proxy before the server that `connection` is connected to.
    static func with<R>(
        before connection: PostgresConnection,
        _ body: (FaultyProxy) async throws -> R
    ) async throws -> R {
        let path = try await connection.withSession { session throws(PostgresError) in
            try session.execute(
                Statement(
                    once: "SELECT current_setting('unix_socket_directories') || '/.s.PGSQL.' || current_setting('port')"
                )
            ).string(0, 0)
        }
        let proxy = try await FaultyProxy(before: path)
        do {
            let result = try await body(proxy)
            try await proxy.close()
            return result
        } catch {
            try await proxy.close()
            throw error
        }
    }

    private init(before path: String) async throws {
        let loop = Web.eventLoops.next()
        let core = try await loop.submit { NIOLoopBound(Core(), eventLoop: loop) }.get()
        self.core = core
        // The single loop of the tests' group, so that the core is used on this loop only.
        channel = try await ServerBootstrap(group: loop)
            .childChannelInitializer { client in
                let relay = NIOLoopBound(Relay(core: core.value), eventLoop: loop)
                return ClientBootstrap(group: loop)
                    .channelInitializer { server in
                        server.eventLoop.makeCompletedFuture {
                            let side = Side(relay: relay.value, isServer: true)
                            relay.value.server = side
                            try server.pipeline.syncOperations.addHandler(side)
                        }
                    }
                    .connect(unixDomainSocketPath: path)
                    .flatMapThrowing { _ in
                        let side = Side(relay: relay.value, isServer: false)
                        relay.value.client = side
                        try client.pipeline.syncOperations.addHandler(side)
                        core.value.relays.append(relay.value)
                    }
            }
            .bind(host: "127.0.0.1", port: 0).get()
        port = channel.localAddress?.port ?? 0
    }

    /// The same database as `conninfo`, through this proxy.
    func conninfo(_ conninfo: String) -> String {
        "\(conninfo) host=127.0.0.1 port=\(port)"
    }

    /// Changes the behaviour.
    func now(_ behaviour: Behaviour) async throws {
        try await onLoop { $0.change(to: behaviour) }
    }

    /// Ends every open connection.
    func cut() async throws {
        try await onLoop { core in for relay in core.relays { relay.end() } }
    }

    /// Ends every connection and refuses new ones, like a machine without the server.
    func goAway() async throws {
        try await channel.close()
        try await cut()
    }

    /// Forwards the next request that contains this text, and ends the connection instead of forwarding the response.
    func dropResponse(to text: String) async throws {
        try await onLoop { $0.needle = Array(text.utf8) }
    }

    var droppedResponses: Int {
        get async throws { try await onLoop { $0.droppedResponses } }
    }

    /// The number of all connections so far, and of open ones.
    var connections: (ever: Int, open: Int) {
        get async throws { try await onLoop { ($0.relays.count, $0.relays.count { !$0.isEnded }) } }
    }

    private func close() async throws {
        try await cut()
        if channel.isActive { try await channel.close() }
    }

    private func onLoop<R: Sendable>(_ body: @escaping @Sendable (Core) -> R) async throws -> R {
        try await channel.eventLoop.submit { [core] in body(core.value) }.get()
    }
}

extension FaultyProxy {
    /// State shared by the connections, used on the event loop only.
    fileprivate final class Core {
        var behaviour = Behaviour.pass
        var relays: [Relay] = []
        var needle: [UInt8]?
        var droppedResponses = 0

        func change(to behaviour: Behaviour) {
            self.behaviour = behaviour
            for relay in relays {
                relay.behaviourChanged()
            }
        }
    }

    /// One connection: a client's side and a server's.
    fileprivate final class Relay {
        let core: Core
        var client: Side?
        var server: Side?
        var dropsResponse = false
        private(set) var isEnded = false

        init(core: Core) {
            self.core = core
        }

        func received(_ bytes: ByteBuffer, fromServer: Bool) {
            if !fromServer, let needle = core.needle, bytes.readableBytesView.firstRange(of: needle) != nil {
                core.needle = nil
                dropsResponse = true
            }
            if fromServer, dropsResponse {
                core.droppedResponses += 1
                return end()
            }
            (fromServer ? client : server)?.send(bytes)
        }

        func sideEnded() {
            if case .holdEverything = core.behaviour { return }
            end()
        }

        func behaviourChanged() {
            client?.flushHeld()
            server?.flushHeld()
            if case .holdEverything = core.behaviour { return }
            if client?.isClosed == true || server?.isClosed == true { end() }
        }

        func end() {
            guard !isEnded else { return }
            isEnded = true
            client?.close()
            server?.close()
        }
    }

    /// One side of a connection.
    fileprivate final class Side: ChannelInboundHandler {
        typealias InboundIn = ByteBuffer
        typealias OutboundOut = ByteBuffer

        private let relay: Relay
        private let isServer: Bool
        private var context: ChannelHandlerContext?
        /// Bytes that were not forwarded to this side yet.
        private var held: [ByteBuffer] = []
        private(set) var isClosed = false

        init(relay: Relay, isServer: Bool) {
            self.relay = relay
            self.isServer = isServer
        }

        func handlerAdded(context: ChannelHandlerContext) {
            self.context = context
        }

        func handlerRemoved(context: ChannelHandlerContext) {
            self.context = nil
        }

        func channelRead(context: ChannelHandlerContext, data: NIOAny) {
            relay.received(Self.unwrapInboundIn(data), fromServer: isServer)
        }

        func channelInactive(context: ChannelHandlerContext) {
            isClosed = true
            relay.sideEnded()
        }

        func errorCaught(context: ChannelHandlerContext, error: any Error) {
            context.close(promise: nil)
        }

        /// Forwards bytes of the other side to this one.
        func send(_ bytes: ByteBuffer) {
            switch relay.core.behaviour {
            case .holdEverything:
                held.append(bytes)
            case .delay(let time) where !isServer:
                guard let context else { return }
                let side = NIOLoopBound(self, eventLoop: context.eventLoop)
                context.eventLoop.scheduleTask(in: time) { side.value.write(bytes) }
            case .pass, .delay:
                write(bytes)
            }
        }

        func flushHeld() {
            if case .holdEverything = relay.core.behaviour { return }
            for bytes in held { write(bytes) }
            held = []
        }

        func close() {
            context?.close(promise: nil)
        }

        private func write(_ bytes: ByteBuffer) {
            context?.writeAndFlush(Self.wrapOutboundOut(bytes), promise: nil)
        }
    }
}
