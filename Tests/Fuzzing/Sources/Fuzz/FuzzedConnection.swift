import AppleTokens
import Ingest
import NIOCore
import NIOEmbedded
import NIOHTTP1
import NIOTLS
import Telemetry

@testable import HTTPConnection

/// A connection that the server builds, on an embedded event loop, with limits that an input can reach.
final class FuzzedConnection {
    static let path = "/n"
    static let limits = {
        var limits = ServerLimits()
        limits.bodyBytes = 64
        limits.headBytes = 256
        limits.headerFields = 8
        limits.pipelined = 4
        return limits
    }()

    private nonisolated(unsafe) static var current: FuzzedConnection?
    private static let eventLoop = EmbeddedEventLoop()
    private nonisolated(unsafe) static let loop = NotificationLoop(
        eventLoop: eventLoop,
        path: path,
        limits: limits,
        connectionLimit: 10,
        metrics: SiwadMetrics(version: "0", appIDs: []),
        receive: { body, ticket in current?.receive(body, ticket) }
    )

    let socket = FuzzedSocket()
    let decoded = DecodedRequests()
    /// The received bodies, each with the number of its head.
    private(set) var bodies: [(head: Int, body: [UInt8])] = []
    private(set) var timesPassed = 0
    private(set) var isDraining = false
    private let channel = EmbeddedChannel(loop: FuzzedConnection.eventLoop)
    private let connection: NotificationConnection
    private var tickets: [UInt64] = []
    /// Bytes that the peer has sent and the connection has not read yet, in order, as in a socket's buffer.
    private var unread: [ArraySlice<UInt8>] = []
    private var peerHasFinished = false

    init() throws {
        let pipeline = channel.pipeline.syncOperations
        try pipeline.addHandler(socket)
        connection = try NotificationConnection.add(to: pipeline, loop: Self.loop)
        try pipeline.addHandler(decoded, position: .before(connection))
        channel.connect(to: try SocketAddress(unixDomainSocketPath: "peer"), promise: nil)
        Self.current = self
        channel.read()
    }

    var isOpen: Bool { channel.isActive }

    var methods: [String] { decoded.heads.map(\.method.rawValue) }

    func follow(_ step: ConnectionScript.Step) {
        switch step {
        case .read(let bytes): if !peerHasFinished { unread.append(bytes) }
        case .answerOldest: answer(tickets.isEmpty ? nil : tickets.removeFirst(), .acknowledged)
        case .answerYoungest: answer(tickets.popLast(), .refused(.badSignature))
        case .unavailable: answer(tickets.popLast(), .unavailable(.queueFull, retryAfterSeconds: 3))
        case .peerFinishes: finish()
        case .peerVanishes: channel.close(promise: nil)
        case .timePasses:
            timesPassed += 1
            connection.timePassed(now: .now() + .seconds(30))
        case .drains:
            isDraining = true
            channel.pipeline.fireUserInboundEventTriggered(ChannelShouldQuiesceEvent())
        case .stalls: setWritable(false)
        case .resumes: setWritable(true)
        }
        Self.eventLoop.run()
        deliverUnread()
        checkMemory()
    }

    /// Answers all waiting requests, so that all responses are sent.
    func settle() {
        follow(.resumes)
        while !tickets.isEmpty { follow(.answerOldest) }
        require(connection.exchange.pendingCount <= 1, "every delivered response is written")
        require(Self.loop.tickets.count == 0, "no ticket is valid without a waiting request")
    }

    /// Closes the connection in any state and checks that it holds nothing.
    func end() {
        channel.close(promise: nil)
        Self.eventLoop.run()
        require(connection.position == nil, "a closed connection is removed from the loop")
        require(connection.unfinishedBytes == 0, "a closed connection holds no bytes")
        require(Self.loop.unfinishedBytes == 0, "the bytes of a closed connection are not counted")
        require(Self.loop.tickets.count == 0, "a closed connection has no tickets")
        Self.current = nil
    }

    /// Delivers a read whenever the connection requests one. While reading is paused, it answers requests first.
    private func deliverUnread() {
        while isOpen, !unread.isEmpty {
            if socket.wantsRead {
                socket.wantsRead = false
                channel.pipeline.fireChannelRead(ByteBuffer(bytes: unread.removeFirst()))
                channel.pipeline.fireChannelReadComplete()
                if isOpen { channel.read() }
            } else if tickets.isEmpty {
                return
            } else {
                answer(tickets.removeFirst(), .acknowledged)
            }
            Self.eventLoop.run()
        }
    }

    /// Closes the peer's sending side. Bytes that the connection has not read yet are lost.
    private func finish() {
        peerHasFinished = true
        unread = []
        channel.pipeline.fireUserInboundEventTriggered(ChannelEvent.inputClosed)
    }

    private func setWritable(_ isWritable: Bool) {
        guard channel.isWritable != isWritable else { return }
        channel.isWritable = isWritable
        channel.pipeline.fireChannelWritabilityChanged()
    }

    private func answer(_ ticket: UInt64?, _ answer: IngestResponse) {
        guard let ticket else { return }
        Self.loop.deliver([Reply(ticket: ticket, answer: answer)])
    }

    /// Bodies that begin with `w` wait for a delivered response.
    private func receive(_ body: Span<UInt8>, _ ticket: UInt64) -> IngestResponse? {
        require(!decoded.failed, "no body is received after bytes that are not HTTP")
        require(!socket.isOutputClosed, "no body is received after the sending side is closed")
        let head = decoded.heads.count - 1
        require(head >= 0 && bodies.last?.head != head, "a request is received once")
        bodies.append((head, body.indices.map { body[$0] }))
        guard body.count > 0, body[0] == UInt8(ascii: "w") else { return .acknowledged }
        tickets.append(ticket)
        return nil
    }

    private func checkMemory() {
        let most = Self.limits.bodyBytes
        require(connection.body.readableBytes <= most, "a held body is within its limit")
        require(tickets.count <= 1_000_000, "the number of waiting requests is bounded")
        require(Self.loop.unfinishedBytes == connection.unfinishedBytes, "the loop counts the bytes of its connections")
        if !connection.exchange.awaitsHead, !connection.exchange.ignoresInput {
            require(connection.unfinishedBytes == connection.body.readableBytes, "exactly the held body is counted")
        }
    }
}
