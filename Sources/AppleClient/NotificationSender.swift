import AsyncHTTPClient
package import NIOCore
import NIOHTTP1

/// Sends notifications to an endpoint as Apple would: one POST each, on connections that are kept.
package struct NotificationSender: Sendable {
    private let url: String
    private let userAgent: String
    private let eventLoopGroup: any EventLoopGroup
    private let concurrency: Int
    private let rate: Double?

    /// A sender to one URL.
    ///
    /// - Parameters:
    ///   - concurrency: requests under way at the same time.
    ///   - rate: requests a second; `nil`: as fast as they are answered.
    /// - Throws: `invalidURL`.
    package init(
        url: String,
        version: String,
        eventLoopGroup: any EventLoopGroup,
        concurrency: Int = 16,
        rate: Double? = nil
    ) throws(AppleClientError) {
        let scheme = url.lowercased()
        guard scheme.hasPrefix("http://") || scheme.hasPrefix("https://"), !url.contains(where: \.isWhitespace) else {
            throw AppleClientError(.invalidURL, "\(url) is not a URL to send to; write http://… or https://…")
        }
        self.url = url
        self.userAgent = KeySetFetcher.userAgent(version)
        self.eventLoopGroup = eventLoopGroup
        self.concurrency = max(1, concurrency)
        self.rate = rate
    }

    /// Sends `count` notifications.
    ///
    /// - Parameters:
    ///   - body: the body of each, by its number from 0; an error ends the sending.
    ///   - onOutcome: told what became of each, in no particular order, one at a time.
    package func send(
        count: Int,
        body: @escaping @Sendable (Int) throws -> [UInt8],
        onOutcome: @escaping @Sendable (_ number: Int, SendOutcome) -> Void = { _, _ in }
    ) async throws -> SendSummary {
        var configuration = HTTPClient.Configuration()
        configuration.redirectConfiguration = .disallow
        configuration.timeout = .init(connect: .seconds(5), read: .seconds(30))
        configuration.connectionPool.concurrentHTTP1ConnectionsPerHostSoftLimit = concurrency
        configuration.connectionPool.retryConnectionEstablishment = false
        configuration.httpVersion = .http1Only
        let client = HTTPClient(eventLoopGroupProvider: .shared(eventLoopGroup), configuration: configuration)
        do {
            let summary = try await send(count, body, onOutcome, client)
            try await client.shutdown()
            return summary
        } catch {
            // The first error is the one to report.
            try? await client.shutdown()
            throw error
        }
    }

    private func send(
        _ count: Int,
        _ body: @escaping @Sendable (Int) throws -> [UInt8],
        _ onOutcome: @escaping @Sendable (Int, SendOutcome) -> Void,
        _ client: HTTPClient
    ) async throws -> SendSummary {
        let clock = ContinuousClock()
        let start = clock.now
        var summary = SendSummary()
        try await withThrowingTaskGroup(of: (Int, SendOutcome).self) { group in
            for number in 0..<count {
                if number >= concurrency, let (finished, outcome) = try await group.next() {
                    summary.note(outcome)
                    onOutcome(finished, outcome)
                }
                if let rate {
                    try await clock.sleep(until: start + .seconds(Double(number) / rate))
                }
                let bytes = try body(number)
                group.addTask { (number, await post(bytes, client)) }
            }
            for try await (finished, outcome) in group {
                summary.note(outcome)
                onOutcome(finished, outcome)
            }
        }
        summary.duration = clock.now - start
        summary.latencies.sort()
        return summary
    }

    private func post(_ body: [UInt8], _ client: HTTPClient) async -> SendOutcome {
        var request = HTTPClientRequest(url: url)
        request.method = .POST
        request.headers.add(name: "User-Agent", value: userAgent)
        request.headers.add(name: "Content-Type", value: "application/json")
        request.body = .bytes(ByteBuffer(bytes: body))
        let clock = ContinuousClock()
        let start = clock.now
        do {
            let response = try await client.execute(request, timeout: .seconds(40))
            let answer = try await response.body.collect(upTo: 65_536)
            let latency = clock.now - start
            let text = response.status == .ok ? "" : String(buffer: answer)
            return .answered(status: Int(response.status.code), body: String(text.prefix(4096)), latency: latency)
        } catch {
            return .failed(PlainCause.words(for: error, from: url))
        }
    }
}
