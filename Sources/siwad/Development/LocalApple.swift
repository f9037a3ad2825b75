import AppleSimulator
import Basics
import JOSE
import Listening
import NIOCore
import Synchronization
import Telemetry
import WebClient
import WebServer

/// A simulated Apple that answers over HTTP and sends notifications.
final class LocalApple: Sendable {
    private let server: Mutex<TokenServer>
    /// nil: no endpoint was named, so nothing is sent.
    private let sender: Mutex<NotificationSender?>

    init(_ server: TokenServer, notifying sender: NotificationSender? = nil) {
        self.server = Mutex(server)
        self.sender = Mutex(sender)
    }

    /// Sends notifications to another endpoint from now on.
    func notify(_ sender: NotificationSender) { self.sender.withLock { $0 = sender } }

    /// Serves while `body` runs.
    ///
    /// - Parameter url: the base of the URLs, with the port that the system chose if `address` has none.
    func serve(on address: ListenAddress, log: Log, while body: (_ url: String) async throws -> Void) async throws {
        let (ports, port) = AsyncStream<Int>.makeStream()
        try await withThrowingTaskGroup(of: Void.self) { group in
            group.addTask {
                defer { port.finish() }
                do {
                    try await SimulatedAppleServer.run(
                        address: address,
                        eventLoops: .ofCommand,
                        log: log,
                        onRunning: { port.yield($0) },
                        answer: self.answer
                    )
                } catch {
                    throw ListenAddress.failure(error, of: [address])
                }
            }
            if let port = await ports.first(where: { _ in true }) {
                try await body("http://\(ListenAddress(host: address.host, port: port))")
            } else {
                try await group.waitForAll()
            }
            group.cancelAll()
        }
    }

    /// Answers a request, with the time of the simulated clock in `Date`.
    func answer(_ exchange: SimulatedAppleServer.Exchange) async -> SimulatedAppleServer.Response? {
        var answer = await undated(exchange)
        let time = server.withLock { $0.milliseconds(WallTime.now().wholeMilliseconds) }
        answer?.date = WallTime(milliseconds: time)
        return answer
    }

    private func undated(_ exchange: SimulatedAppleServer.Exchange) async -> SimulatedAppleServer.Response? {
        let place = exchange.path.split(separator: "/").map(String.init)
        guard place.count == 2 else { return nil }
        if place[0] == "simulator" {
            guard let control = TokenServer.Control(rawValue: place[1]) else { return nil }
            return await perform(control, exchange.body)
        }
        guard let endpoint = Behaviour.Endpoint(rawValue: place[1]) else { return nil }
        return await respond(to: endpoint, exchange)
    }

    private func respond(
        to endpoint: Behaviour.Endpoint,
        _ exchange: SimulatedAppleServer.Exchange
    ) async -> SimulatedAppleServer.Response {
        let form = exchange.isForm ? FormFields(parsing: exchange.body) : nil
        let response: SimulatedResponse
        do throws(JOSEError) {
            response = try server.withLock { server throws(JOSEError) in
                try server.respond(to: endpoint, form, at: WallTime.now().wholeMilliseconds)
            }
        } catch {
            return SimulatedAppleServer.Response(status: 500, contentType: nil, body: "\(error)")
        }
        // Cancelled only at the end of the process, when no response is needed.
        if response.delay > 0 { try? await Task.sleep(for: .milliseconds(response.delay)) }
        return SimulatedAppleServer.Response(
            status: response.status,
            contentType: response.body.isEmpty ? nil : response.contentType,
            retryAfter: response.retryAfter,
            location: response.location,
            body: response.body,
            isCut: response.isCut
        )
    }

    /// Answers a control request.
    func perform(_ control: TokenServer.Control, _ body: [UInt8]) async -> SimulatedAppleServer.Response {
        do throws(ControlError) {
            let done = try server.withLock { server throws(ControlError) in
                (
                    answer: try server.perform(control, body, at: WallTime.now().wholeMilliseconds),
                    signer: server.signers.last
                )
            }
            guard case .object(var members) = done.answer.response else { return Self.control(200, "{}") }
            if !done.answer.events.isEmpty {
                var sent: [JSONValue] = []
                for event in done.answer.events {
                    let status = done.answer.sendsEvents ? await notify(event, signedBy: done.signer) : nil
                    sent.append(
                        .object([
                            .init("type", .string(event.type)), .init("app", .string(event.app)),
                            .init("status", status.map { .number(JSONNumber(Int64($0))) } ?? .null),
                        ])
                    )
                }
                members.append(.init("notifications", .array(sent)))
            }
            return Self.control(200, JSONValue.object(members).compactText)
        } catch {
            return Self.control(400, JSONValue.object([.init("error", .string(error.description))]).compactText)
        }
    }

    private static func control(_ status: Int, _ body: String) -> SimulatedAppleServer.Response {
        SimulatedAppleServer.Response(status: status, contentType: "application/json", body: body)
    }

    /// - Returns: the status of the response; nil if there was none, or no endpoint was named.
    private func notify(_ event: SimulatedEvent, signedBy apple: SimulatedApple?) async -> Int? {
        guard let sender = sender.withLock({ $0 }), let apple, let token = try? apple.token(for: event) else {
            return nil
        }
        let body = Array(SimulatedApple.body(token: token).utf8)
        // The caller reports a failure as no status.
        let summary = try? await sender.send(count: 1, body: { _ in body })
        return summary?.statuses.keys.first
    }
}
