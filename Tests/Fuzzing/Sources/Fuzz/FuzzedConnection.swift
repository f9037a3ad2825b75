import AppleTokens
import Ingest
import NIOCore
import NIOEmbedded
import NIOHTTP1
import NIOTLS
import Telemetry

@testable import HTTPConnection

/// A connection as the server builds it, on an event loop that does not run by itself, with limits that an input can reach.
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
        lane: LaneInterface { body, ticket in current?.receive(body, ticket) }
    )

    let socket = FuzzedSocket()
    let decoded = DecodedRequests()
    /// What the intake got, each with the number of its head.
    private(set) var bodies: [(head: Int, body: [UInt8])] = []
    private(set) var timesPassed = 0
    /// The service is ending.
    private(set) var isDraining = false
    private let channel = EmbeddedChannel(loop: FuzzedConnection.eventLoop)
    private let connection = NotificationConnection(loop: FuzzedConnection.loop, isSecure: false)
    private var tickets: [UInt64] = []
    /// What the peer has sent and the connection hasn't read yet. Like a socket's buffer it keeps its order and loses
    /// nothing.
    private var unread: [ArraySlice<UInt8>] = []
    private var peerHasFinished = false

    init() throws {
        let pipeline = channel.pipeline.syncOperations
        try pipeline.addHandler(socket)
        try connection.join(pipeline)
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

    /// Answers all that waits, so that everything that will be sent is sent.
    func settle() {
        follow(.resumes)
        while !tickets.isEmpty { follow(.answerOldest) }
        require(connection.exchange.pendingCount <= 1, "what the intake answered is answered")
        require(Self.loop.tickets.count == 0, "no ticket is out without a request that waits")
    }

    /// Ends it, whatever its state, and looks whether anything is left of it.
    func end() {
        channel.close(promise: nil)
        Self.eventLoop.run()
        require(connection.position == nil, "a connection that has ended isn't among the others")
        require(connection.unfinishedBytes == 0, "a connection that has ended holds nothing")
        require(Self.loop.tickets.count == 0, "a connection that has ended waits for nothing")
        Self.current = nil
    }

    /// A socket is read when more is wanted. Where the connection wants no more, the answers make it want more.
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

    /// The end comes after all bytes. What is never read is lost with the connection.
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

    private func answer(_ ticket: UInt64?, _ answer: Answer) {
        guard let ticket else { return }
        Self.loop.deliver([Reply(ticket: ticket, answer: answer)])
    }

    /// The intake: what begins with `w` has to wait.
    private func receive(_ body: Span<UInt8>, _ ticket: UInt64) -> Answer? {
        require(!decoded.failed, "nothing is handed on after what isn't HTTP")
        require(!socket.isOutputClosed, "nothing is handed on that can't be answered")
        let head = decoded.heads.count - 1
        require(head >= 0 && bodies.last?.head != head, "a request is handed on once")
        bodies.append((head, body.indices.map { body[$0] }))
        guard body.count > 0, body[0] == UInt8(ascii: "w") else { return .acknowledged }
        tickets.append(ticket)
        return nil
    }

    private func checkMemory() {
        let most = Self.limits.bodyBytes
        require(connection.body.readableBytes <= most, "no more of a body is kept than its limit")
        require(tickets.count <= 1_000_000, "no more requests wait than came")
        if !connection.exchange.awaitsHead {
            require(connection.unfinishedBytes <= most, "no more is counted as unfinished than a body may be")
        }
    }
}
