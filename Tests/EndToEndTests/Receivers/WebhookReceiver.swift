import Basics
import Glibc
import JOSE
import NIOCore
import NIOPosix
import NIOSSL
import Synchronization
import TestSupport
import Testing
import Webhooks

/// An application's endpoint, which verifies what it gets and answers as a test decides.
final class WebhookReceiver: Sendable {
    struct Message: Sendable {
        /// `webhook-id` of a verified signature; nil if the signature is wrong.
        let id: String?
        let position: Int64
        let sub: String
        let head: String
    }

    enum Answer: Sendable {
        case status(Int, [String: String] = [:])
        /// This status after a time.
        case delayed(Duration, Int)
        /// These bytes, and the connection stays open.
        case bytes(String)
        /// These bytes again and again, after others that are sent once.
        case endless(String, after: String = "")
        /// One byte a second.
        case dripping
        case reset
        case never
    }

    private struct State {
        var messages: [Message] = []
        /// What the reference library verifies too: lines for `verify.py`.
        var deliveries: [String] = []
        var accepted: [Int64] = []
        var answers = 0
        var connections = 0
    }

    let port: Int
    /// The secret of every endpoint of the tests.
    let secret: WebhookSecret
    private let isEncrypted: Bool
    private let state = Mutex(State())
    private let answer = Mutex<@Sendable (Message, _ number: Int) -> Answer>({ _, _ in .status(200) })
    private let verifier: WebhookVerifier
    private let channel = Mutex<(any Channel)?>(nil)

    /// Runs a test with a receiver on a loopback address.
    ///
    /// - Parameter isEncrypted: whether it speaks TLS, with ``LocalhostCertificate``.
    static func with<R>(
        _ secret: WebhookSecret,
        isEncrypted: Bool = false,
        answering answer: @escaping @Sendable (Message, _ number: Int) -> Answer = { _, _ in .status(200) },
        _ body: (WebhookReceiver) async throws -> R
    ) async throws -> R {
        let receiver = try await WebhookReceiver(secret, port: 0, isEncrypted: isEncrypted)
        receiver.answer(answer)
        do {
            let result = try await body(receiver)
            await receiver.close()
            return result
        } catch {
            await receiver.close()
            throw error
        }
    }

    init(_ secret: WebhookSecret, port: Int, isEncrypted: Bool = false) async throws {
        self.secret = secret
        self.isEncrypted = isEncrypted
        verifier = try WebhookVerifier([secret.receiverText])
        let owner = Owner()
        let tls = try isEncrypted ? LocalhostCertificate.serverContext() : nil
        let channel = try await ServerBootstrap(group: MultiThreadedEventLoopGroup.singleton)
            .serverChannelOption(.socketOption(.so_reuseaddr), value: 1)
            .childChannelInitializer { channel in
                channel.eventLoop.makeCompletedFuture {
                    if let tls { try channel.pipeline.syncOperations.addHandler(NIOSSLServerHandler(context: tls)) }
                    try channel.pipeline.syncOperations.addHandler(Connection(owner))
                }
            }
            .bind(host: "127.0.0.1", port: port).get()
        self.port = channel.localAddress?.port ?? 0
        self.channel.withLock { $0 = channel }
        owner.receiver.withLock { $0 = self }
    }

    /// Closes the listening socket: later connections are refused. The reference library must have the same opinion of each
    /// signature as this receiver.
    func close() async {
        // Fails only if it is closed.
        try? await channel.withLock { $0 }?.close()
        let deliveries = state.withLock { state in
            let deliveries = state.deliveries
            state.deliveries = []
            return deliveries
        }
        guard PythonProgram.isAvailable, !deliveries.isEmpty else { return }
        do {
            let differences = try await PythonProgram.differences(in: deliveries, from: secret.receiverText)
            #expect(differences == "")
        } catch {
            Issue.record("the reference library could not verify: \(error)")
        }
    }

    func answer(_ answer: @escaping @Sendable (Message, _ number: Int) -> Answer) {
        self.answer.withLock { $0 = answer }
    }

    var url: String { isEncrypted ? "https://localhost:\(port)/hooks" : "http://127.0.0.1:\(port)/hooks" }
    var messages: [Message] { state.withLock { $0.messages } }
    var positions: [Int64] { messages.map(\.position) }
    /// The positions that were answered with a 2xx, in the order of the answers.
    var accepted: [Int64] { state.withLock { $0.accepted } }
    /// The number of answers with a status.
    var answers: Int { state.withLock { $0.answers } }
    var connections: Int { state.withLock { $0.connections } }

    private func received(head: String, body: [UInt8]) -> (message: Message, answer: Answer) {
        var fields: [String: String] = [:]
        for line in head.split(separator: "\r\n").dropFirst() {
            let parts = line.split(separator: ":", maxSplits: 1)
            if parts.count == 2 { fields[parts[0].lowercased()] = String(parts[1].drop { $0 == " " }) }
        }
        let json = try? JSONValue(parsing: body)
        let data = json?["data"]
        // A wrong signature is a finding of the test.
        let id = try? verifier.verify(body: body, at: .now()) { fields[$0] }
        let message = Message(
            id: id,
            position: data?["position"]?.integer ?? 0,
            sub: data?["sub"]?.string ?? "",
            head: head
        )
        let delivery = JSONValue.object([
            .init("accepted", .boolean(id != nil)), .init("body", .string(String(decoding: body, as: UTF8.self))),
            .init(
                "headers",
                .object(fields.filter { $0.key.hasPrefix("webhook-") }.map { .init($0.key, .string($0.value)) })
            ),
        ])
        let number = state.withLock { state in
            state.messages.append(message)
            if PythonProgram.isAvailable { state.deliveries.append(delivery.compactText) }
            return state.messages.count
        }
        return (message, answer.withLock { $0 }(message, number))
    }

    /// Called before the answer is sent, so that an effect of it is never seen before it is counted.
    private func willAnswer(_ message: Message, with status: Int) {
        state.withLock { state in
            state.answers += 1
            if 200..<300 ~= status { state.accepted.append(message.position) }
        }
    }

    private final class Owner: Sendable {
        let receiver = Mutex<WebhookReceiver?>(nil)
    }

    private final class Connection: ChannelInboundHandler {
        typealias InboundIn = ByteBuffer
        typealias OutboundOut = ByteBuffer

        private let owner: Owner
        private var pending: [UInt8] = []

        init(_ owner: Owner) { self.owner = owner }

        func channelActive(context: ChannelHandlerContext) {
            owner.receiver.withLock { $0 }?.state.withLock { $0.connections += 1 }
        }

        func channelRead(context: ChannelHandlerContext, data: NIOAny) {
            pending += Array(buffer: Self.unwrapInboundIn(data))
            while let end = pending.firstRange(of: Array("\r\n\r\n".utf8)) {
                let head = String(decoding: pending[..<end.lowerBound], as: UTF8.self)
                let length =
                    head.split(separator: "\r\n").first { $0.lowercased().hasPrefix("content-length:") }
                    .flatMap { Int($0.split(separator: " ").last ?? "") } ?? 0
                guard pending.count >= end.upperBound + length else { return }
                let body = Array(pending[end.upperBound..<end.upperBound + length])
                pending.removeFirst(end.upperBound + length)
                guard let receiver = owner.receiver.withLock({ $0 }) else { return }
                let (message, answer) = receiver.received(head: head, body: body)
                perform(answer, to: message, of: receiver, context)
            }
        }

        func errorCaught(context: ChannelHandlerContext, error: any Error) { context.close(promise: nil) }

        private func perform(
            _ answer: Answer,
            to message: Message,
            of receiver: WebhookReceiver,
            _ context: ChannelHandlerContext
        ) {
            switch answer {
            case .status(let status, let fields):
                receiver.willAnswer(message, with: status)
                write(Self.head(status, fields), context)
            case .delayed(let pause, let status):
                let (channel, text) = (context.channel, Self.head(status))
                channel.eventLoop.scheduleTask(in: TimeAmount(pause)) {
                    receiver.willAnswer(message, with: status)
                    channel.writeAndFlush(ByteBuffer(string: text), promise: nil)
                }
            case .bytes(let text): write(text, context)
            case .endless(let text, let first):
                write(first, context)
                repeatedly(text, after: .zero, context)
            case .dripping:
                write("HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n", context)
                repeatedly("x", after: .seconds(1), context)
            case .reset:
                // Closing with a zero linger time sends RST.
                let channel = context.channel
                let options = channel as? any SocketOptionProvider
                options?.setSoLinger(linger(l_onoff: 1, l_linger: 0)).whenComplete { _ in
                    channel.close(promise: nil)
                }
            case .never: break
            }
        }

        private static func head(_ status: Int, _ fields: [String: String] = [:]) -> String {
            let lines = fields.map { "\($0): \($1)\r\n" }.joined()
            return "HTTP/1.1 \(status) X\r\nContent-Length: 0\r\n\(lines)\r\n"
        }

        private func repeatedly(_ text: String, after pause: TimeAmount, _ context: ChannelHandlerContext) {
            let channel = context.channel
            channel.eventLoop.scheduleTask(in: pause) {
                guard channel.isActive else { return }
                channel.writeAndFlush(ByteBuffer(string: text)).whenSuccess {
                    Self.again(text, pause, channel)
                }
            }
        }

        private static func again(_ text: String, _ pause: TimeAmount, _ channel: any Channel) {
            channel.eventLoop.scheduleTask(in: pause) {
                guard channel.isActive else { return }
                channel.writeAndFlush(ByteBuffer(string: text)).whenSuccess { again(text, pause, channel) }
            }
        }

        private func write(_ text: String, _ context: ChannelHandlerContext) {
            context.writeAndFlush(Self.wrapOutboundOut(ByteBuffer(string: text)), promise: nil)
        }
    }
}
