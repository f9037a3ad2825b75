import Basics
import HTTPTypes
import HummingbirdCore
import Listening
import Logging
import NIOCore
import NIOSSL
import SignIn
import Synchronization

/// Serves the connections of the application endpoint: reads requests within their limits, and writes responses.
struct ApplicationChannel: ServerChildChannel {
    /// The deadline of a request passed before its body was complete.
    private struct TooSlow: Error {}

    /// Ends a connection whose last request was not read.
    private struct ConnectionEnds: Error {}

    /// The body of a request, or why it has none.
    private enum Body {
        case complete([UInt8])
        case refused(Problem)
    }

    private let endpoint: ApplicationEndpoint
    private let certificates: ServerCertificates?
    private let limits: ApplicationServer.Limits
    private let connections: OpenConnections
    let requests: RequestSlots

    init(
        endpoint: ApplicationEndpoint,
        certificates: ServerCertificates?,
        limits: ApplicationServer.Limits,
        connections: OpenConnections
    ) {
        self.endpoint = endpoint
        self.certificates = certificates
        self.limits = limits
        self.connections = connections
        self.requests = RequestSlots(limit: limits.requests)
    }

    func setup(channel: any Channel, logger: Logger) -> EventLoopFuture<HTTP1Channel.Value> {
        connections.add(channel)
        return channel.eventLoop.makeCompletedFuture {
            guard let certificates else { return }
            try channel.pipeline.syncOperations.addHandler(NIOSSLServerHandler(context: certificates.context))
        }.flatMap {
            http.setup(channel: channel, logger: logger)
        }
    }

    func handle(value: HTTP1Channel.Value, logger: Logger) async {
        // On its event loop, so that a request changes threads only for what the service does.
        await withTaskExecutorPreference(EventLoops.executor(on: value.channel.eventLoop)) {
            await http.handle(value: value, logger: logger)
        }
    }

    private var http: HTTP1Channel {
        var decoder = HTTP1Channel.Configuration.DecoderConfiguration()
        decoder.maxHeaderFieldSize = 8192
        decoder.maxHeaderListSize = 16_384
        decoder.maxHeaderFieldCount = 64
        let configuration = HTTP1Channel.Configuration(
            idleTimeout: limits.idleDeadline,
            httpDecoderConfiguration: decoder
        )
        return HTTP1Channel(responder: respond, configuration: configuration)
    }

    // MARK: - One request

    @concurrent private func respond(
        to request: Request,
        _ writer: consuming ResponseWriter,
        _ channel: any Channel
    ) async throws {
        let deadline = NIODeadline.now() + limits.deadline
        var parts = request.body.makeAsyncIterator()
        let accepted: ApplicationEndpoint.Accepted
        do throws(Problem) {
            accepted = try endpoint.accept(request)
        } catch {
            endpoint.refused(request, error)
            return try await refuse(request, with: error, &parts, writer, channel, deadline)
        }
        guard requests.take() else {
            let problem = Problem(.overloaded, "Too many requests are served at this moment; send it again.")
            endpoint.refused(request, problem, accepted)
            return try await refuse(request, with: problem, &parts, writer, channel, deadline)
        }
        connections.mark(channel, isBusy: true)
        defer { connections.mark(channel, isBusy: false) }
        let body: Body
        do {
            if request.expectsContinue {
                let timer = closing(channel)
                defer { timer.cancel() }
                try await writer.writeInformationalHead(HTTPResponse(status: .continue))
            }
            body = try await self.body(of: request, from: &parts, channel, deadline, isKept: true)
        } catch {
            requests.free()
            throw error
        }
        switch body {
        case .complete(let bytes):
            let response = await answer(to: accepted, of: request, bytes, channel, deadline)
            try await write(response, to: request, writer, channel)
        case .refused(let problem):
            requests.free()
            endpoint.refused(request, problem, accepted)
            try await end(with: problem, request, &parts, writer, channel)
        }
    }

    @concurrent private func body(
        of request: Request,
        from parts: inout RequestBody.AsyncIterator,
        _ channel: any Channel,
        _ deadline: NIODeadline,
        isKept: Bool
    ) async throws -> Body {
        let tooLarge = Problem(.bodyTooLarge, "A body has at most \(SignInRequest.largestBody) bytes.")
        let declared = request.headers[.contentLength].flatMap { Int($0) } ?? 0
        guard declared <= SignInRequest.largestBody else { return .refused(tooLarge) }
        let timer = channel.eventLoop.scheduleTask(deadline: deadline) {
            channel.pipeline.fireErrorCaught(TooSlow())
        }
        defer { timer.cancel() }
        var bytes: [UInt8] = []
        var count = 0
        do {
            while let part = try await parts.next() {
                count += part.readableBytes
                guard count <= SignInRequest.largestBody else { return .refused(tooLarge) }
                if isKept { bytes.append(contentsOf: part.readableBytesView) }
            }
        } catch is TooSlow {
            return .refused(Problem(.requestTimeout, "Send the whole request without a pause."))
        }
        return .complete(bytes)
    }

    /// The service's answer, or 503 at the deadline, which is counted here: the work continues, and counts its own result.
    private func answer(
        to accepted: ApplicationEndpoint.Accepted,
        of request: Request,
        _ body: [UInt8],
        _ channel: any Channel,
        _ deadline: NIODeadline
    ) async -> ApplicationEndpoint.Response {
        let (answers, answer) = AsyncStream.makeStream(
            of: Result<ApplicationEndpoint.Response, Problem>.self,
            bufferingPolicy: .bufferingOldest(1)
        )
        // Not cancelled with the connection: a sign-in whose code Apple has taken is recorded all the same, and the same
        // request gets its answer then. The number of these tasks is bounded by the slots, for which the server waits.
        Task { [endpoint, requests] in
            answer.yield(.success(await endpoint.answer(to: accepted, body)))
            requests.free()
        }
        let timer = channel.eventLoop.scheduleTask(deadline: deadline) {
            let problem = Problem(.overloaded, "The request took too long and may still be completed; send it again.")
            answer.yield(.failure(problem))
        }
        defer { timer.cancel() }
        for await first in answers {
            switch first {
            case .success(let served): return served
            case .failure(let problem):
                endpoint.refused(request, problem, accepted)
                return ApplicationEndpoint.Response(problem)
            }
        }
        return ApplicationEndpoint.Response(Problem(.draining, "siwad is shutting down; send it again."))
    }

    // MARK: - Responses

    @concurrent private func write(
        _ response: ApplicationEndpoint.Response,
        to request: Request,
        _ writer: consuming ResponseWriter,
        _ channel: any Channel,
        isLast: Bool = false
    ) async throws {
        var fields = response.fields
        fields[.date] = WallTime.now().httpDate
        fields[.cacheControl] = "no-store"
        if let type = response.type {
            fields[.contentType] = type
            fields[.contentLength] = "\(response.body.readableBytes)"
        }
        if isLast { fields[.connection] = "close" }
        let head = HTTPResponse(status: .init(code: response.status), headerFields: fields)
        let hasBody = response.type != nil && request.method != .head
        let timer = closing(channel)
        defer { timer.cancel() }
        try await writer.write(response: head, body: hasBody ? ResponseBody(byteBuffer: response.body) : ResponseBody())
    }

    /// Closes the connection at the deadline of a write, which waits for a client that does not read.
    private func closing(_ channel: any Channel) -> Scheduled<Void> {
        channel.eventLoop.scheduleTask(in: limits.idleDeadline) { channel.close(promise: nil) }
    }

    /// Answers a request that is not served.
    @concurrent private func refuse(
        _ request: Request,
        with problem: Problem,
        _ parts: inout RequestBody.AsyncIterator,
        _ writer: consuming ResponseWriter,
        _ channel: any Channel,
        _ deadline: NIODeadline
    ) async throws {
        // The connection can be used again once the body was read. A client that waits for 100 Continue may never send it.
        guard !request.expectsContinue,
            case .complete = try await body(of: request, from: &parts, channel, deadline, isKept: false)
        else { return try await end(with: problem, request, &parts, writer, channel) }
        try await write(ApplicationEndpoint.Response(problem, at: request.uri.path), to: request, writer, channel)
    }

    /// Ends a connection with a response, and gives the client the time to read it: if bytes of the request were left
    /// unread, the system would drop what the client has not read yet.
    @concurrent private func end(
        with problem: Problem,
        _ request: Request,
        _ parts: inout RequestBody.AsyncIterator,
        _ writer: consuming ResponseWriter,
        _ channel: any Channel
    ) async throws {
        let response = ApplicationEndpoint.Response(problem, at: request.uri.path)
        try await write(response, to: request, writer, channel, isLast: true)
        channel.close(mode: .output, promise: nil)
        let timer = channel.eventLoop.scheduleTask(in: limits.lingerDeadline) { channel.close(promise: nil) }
        defer { timer.cancel() }
        while try await parts.next() != nil {}
        throw ConnectionEnds()
    }
}

extension Request {
    fileprivate var expectsContinue: Bool {
        headers[.expect]?.lowercased() == "100-continue"
    }
}

/// Counts the requests that are served.
final class RequestSlots: Sendable {
    private let limit: Int
    private let taken = Atomic(0)
    private let event = WakeupEvent()

    init(limit: Int) {
        self.limit = limit
    }

    /// Returns false if all are taken.
    func take() -> Bool {
        guard taken.add(1, ordering: .relaxed).newValue <= limit else {
            free()
            return false
        }
        return true
    }

    func free() {
        if taken.subtract(1, ordering: .relaxed).newValue == 0 { event.signal() }
    }

    /// Waits until no request is served, or until the task is cancelled.
    func untilFree() async {
        while taken.load(ordering: .relaxed) > 0, !Task.isCancelled { await event.wait(atMost: .seconds(1)) }
    }
}
