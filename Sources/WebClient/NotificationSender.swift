import AsyncHTTPClient
package import NIOCore
import NIOHTTP1

package enum SendOutcome: Sendable, Equatable {
    /// The status and, unless it is 200, the first kilobytes of the body.
    case answered(status: Int, body: String, latency: Duration)
    /// No response, with the cause.
    case failed(String)
}

/// Sends notifications to an endpoint as Apple does, one POST each, over keep-alive connections.
package struct NotificationSender: Sendable {
    private let url: String
    private let userAgent: String
    private let eventLoopGroup: any EventLoopGroup
    private let concurrency: Int
    private let rate: Double?

    /// - Parameters:
    ///   - concurrency: the number of requests in progress at the same time.
    ///   - rate: requests per second; `nil` for no limit.
    /// - Throws: `invalidURL`.
    package init(
        url: String,
        version: String,
        eventLoopGroup: any EventLoopGroup,
        concurrency: Int = 16,
        rate: Double? = nil
    ) throws(WebClientError) {
        let scheme = url.lowercased()
        guard scheme.hasPrefix("http://") || scheme.hasPrefix("https://"), !url.contains(where: \.isWhitespace) else {
            throw WebClientError(.invalidURL, "\(url) is not a URL to send to; write http://… or https://…")
        }
        self.url = url
        self.userAgent = notificationUserAgent(version)
        self.eventLoopGroup = eventLoopGroup
        self.concurrency = max(1, concurrency)
        self.rate = rate
    }

    /// Sends `count` notifications. If the task is cancelled, sends no more, and waits for the responses to those it sent.
    ///
    /// - Parameters:
    ///   - body: returns the body of each by its number from 0; an error ends the sending.
    ///   - onOutcome: called once for each, in no particular order, never concurrently.
    package func send(
        count: Int,
        body: @escaping @Sendable (Int) throws -> [UInt8],
        onOutcome: @escaping @Sendable (_ number: Int, SendOutcome) -> Void = { _, _ in }
    ) async throws -> SendSummary {
        var configuration = HTTPClient.Configuration.singleAttempt
        configuration.timeout = .init(connect: .seconds(5), read: .seconds(30))
        configuration.connectionPool.concurrentHTTP1ConnectionsPerHostSoftLimit = concurrency
        return try await withHTTPClient(configuration, on: eventLoopGroup, deadline: nil) { client in
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
                        // Cancellation ends the loop below.
                        try? await clock.sleep(until: start + .seconds(Double(number) / rate))
                    }
                    guard !Task.isCancelled else { break }
                    let bytes = try body(number)
                    // Awaited here, in a task that is not cancelled with this one.
                    group.addTask { (number, await Task { await post(bytes, client) }.value) }
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

package struct SendSummary: Sendable, Equatable {
    /// The number of responses by status.
    package internal(set) var statuses: [Int: Int] = [:]
    /// The number of requests without a response.
    package internal(set) var failures = 0
    package internal(set) var firstFailure: String?
    /// From the first request to the last response.
    package internal(set) var duration: Duration = .zero
    /// From each request to its response, ascending.
    package internal(set) var latencies: [Duration] = []

    /// The latency that this share of the responses, from 0 to 1, did not exceed; `nil` without responses.
    package func latency(ofShare share: Double) -> Duration? {
        guard !latencies.isEmpty else { return nil }
        let rank = (share * Double(latencies.count)).rounded(.up)
        return latencies[min(max(Int(rank), 1), latencies.count) - 1]
    }

    mutating func note(_ outcome: SendOutcome) {
        switch outcome {
        case .answered(let status, _, let latency):
            statuses[status, default: 0] += 1
            latencies.append(latency)
        case .failed(let reason):
            failures += 1
            firstFailure = firstFailure ?? reason
        }
    }
}
