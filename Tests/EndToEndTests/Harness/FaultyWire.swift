import NIOCore
import NIOPosix
import Postgres

/// A TCP proxy before a PostgreSQL server, which does to the connections what networks do to them.
final class FaultyWire: Sendable {
    /// What it does with bytes and with new connections.
    enum Behaviour: Sendable {
        /// Passes everything on.
        case pass
        /// Passes the server's bytes on so much later.
        case delay(TimeAmount)
        /// Takes everything and passes nothing on, not even the end of a connection; what it holds goes on when it
        /// passes again.
        case blackHole
    }

    /// Where it listens on 127.0.0.1.
    let port: Int
    private let channel: any Channel
    private let core: NIOLoopBound<Core>

    /// Runs `body` with a proxy before the server that `connection` is connected to.
    static func with<R>(
        before connection: PostgresConnection,
        _ body: (FaultyWire) async throws -> R
    ) async throws -> R {
        let path = try await connection.withSession { session throws(PostgresError) in
            try session.execute(
                Statement(
                    once: "SELECT current_setting('unix_socket_directories') || '/.s.PGSQL.' || current_setting('port')"
                )
            ).string(0, 0)
        }
        let wire = try await FaultyWire(before: path)
        do {
            let result = try await body(wire)
            try await wire.close()
            return result
        } catch {
            try await wire.close()
            throw error
        }
    }

    private init(before path: String) async throws {
        let loop = Web.eventLoops.next()
        let core = try await loop.submit { NIOLoopBound(Core(), eventLoop: loop) }.get()
        self.core = core
        // The one loop of the tests' group, so that the core is only ever used on it.
        channel = try await ServerBootstrap(group: loop)
            .childChannelInitializer { client in
                let link = NIOLoopBound(Link(core: core.value), eventLoop: loop)
                return ClientBootstrap(group: loop)
                    .channelInitializer { server in
                        server.eventLoop.makeCompletedFuture {
                            let side = Side(link: link.value, isServer: true)
                            link.value.server = side
                            try server.pipeline.syncOperations.addHandler(side)
                        }
                    }
                    .connect(unixDomainSocketPath: path)
                    .flatMapThrowing { _ in
                        let side = Side(link: link.value, isServer: false)
                        link.value.client = side
                        try client.pipeline.syncOperations.addHandler(side)
                        core.value.links.append(link.value)
                    }
            }
            .bind(host: "127.0.0.1", port: 0).get()
        port = channel.localAddress?.port ?? 0
    }

    /// A conninfo that leads through this proxy to where `conninfo` leads.
    func conninfo(_ conninfo: String) -> String {
        "\(conninfo) host=127.0.0.1 port=\(port)"
    }

    /// What it does from here on.
    func now(_ behaviour: Behaviour) async throws {
        try await onLoop { $0.change(to: behaviour) }
    }

    /// Ends every connection that there is.
    func cut() async throws {
        try await onLoop { core in for link in core.links { link.end() } }
    }

    /// Ends every connection, and takes none from here on: as when a machine was switched off and its address is known.
    func goAway() async throws {
        try await channel.close()
        try await cut()
    }

    /// Lets the next request that holds this text through to the server, and ends the connection instead of passing the
    /// answer on.
    func dropAnswer(to text: String) async throws {
        try await onLoop { $0.needle = Array(text.utf8) }
    }

    /// How many answers were dropped.
    var droppedAnswers: Int {
        get async throws { try await onLoop { $0.droppedAnswers } }
    }

    /// How many connections there were, and how many there are.
    var connections: (ever: Int, open: Int) {
        get async throws { try await onLoop { ($0.links.count, $0.links.count { !$0.isEnded }) } }
    }

    private func close() async throws {
        try await cut()
        if channel.isActive { try await channel.close() }
    }

    private func onLoop<R: Sendable>(_ body: @escaping @Sendable (Core) -> R) async throws -> R {
        try await channel.eventLoop.submit { [core] in body(core.value) }.get()
    }
}

extension FaultyWire {
    /// What the connections of a proxy share; only used on its event loop.
    fileprivate final class Core {
        var behaviour = Behaviour.pass
        var links: [Link] = []
        var needle: [UInt8]?
        var droppedAnswers = 0

        func change(to behaviour: Behaviour) {
            self.behaviour = behaviour
            for link in links {
                link.behaviourChanged()
            }
        }
    }

    /// One connection: a client's side and a server's.
    fileprivate final class Link {
        let core: Core
        var client: Side?
        var server: Side?
        var dropsAnswer = false
        private(set) var isEnded = false

        init(core: Core) {
            self.core = core
        }

        func took(_ bytes: ByteBuffer, fromServer: Bool) {
            if !fromServer, let needle = core.needle, bytes.readableBytesView.firstRange(of: needle) != nil {
                core.needle = nil
                dropsAnswer = true
            }
            if fromServer, dropsAnswer {
                core.droppedAnswers += 1
                return end()
            }
            (fromServer ? client : server)?.send(bytes)
        }

        func sideEnded() {
            if case .blackHole = core.behaviour { return }
            end()
        }

        func behaviourChanged() {
            client?.flushHeld()
            server?.flushHeld()
            if case .blackHole = core.behaviour { return }
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

        private let link: Link
        private let isServer: Bool
        private var context: ChannelHandlerContext?
        /// What the black hole has for this side.
        private var held: [ByteBuffer] = []
        private(set) var isClosed = false

        init(link: Link, isServer: Bool) {
            self.link = link
            self.isServer = isServer
        }

        func handlerAdded(context: ChannelHandlerContext) {
            self.context = context
        }

        func handlerRemoved(context: ChannelHandlerContext) {
            self.context = nil
        }

        func channelRead(context: ChannelHandlerContext, data: NIOAny) {
            link.took(Self.unwrapInboundIn(data), fromServer: isServer)
        }

        func channelInactive(context: ChannelHandlerContext) {
            isClosed = true
            link.sideEnded()
        }

        func errorCaught(context: ChannelHandlerContext, error: any Error) {
            context.close(promise: nil)
        }

        /// Sends to this side what the other one sent.
        func send(_ bytes: ByteBuffer) {
            switch link.core.behaviour {
            case .blackHole:
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
            if case .blackHole = link.core.behaviour { return }
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
