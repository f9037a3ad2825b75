import AccountStore
import ArgumentParser
import Basics
import Effects
import Listening
import Terminal
import WebClient
import Webhooks

/// Options of a command that sends events to a receiver under development.
struct ForwardOptions: ParsableArguments {
    @Option(
        help: ArgumentHelp(
            "Post each event to this URL of this machine, signed as a webhook, and print how it was answered.",
            valueName: "url"
        )
    )
    var forwardTo: String?
    @Option(
        help: ArgumentHelp("The secret that signs: whsec_… or whsk_….", valueName: "file"),
        completion: .file()
    )
    var secretFile: String?

    func validate() throws {
        guard (forwardTo == nil) == (secretFile == nil) else {
            throw ValidationError("--forward-to and --secret-file need each other")
        }
        _ = try url()
    }

    /// nil: events are not forwarded.
    fileprivate func url() throws -> EndpointURL? {
        guard let forwardTo else { return nil }
        do throws(WebClientError) {
            let url = try EndpointURL(parsing: forwardTo)
            let isLocal = IPAddress(url.host).map { ip in ChangeForwarder.loopback.contains { $0.contains(ip) } }
            if isLocal ?? (url.host == "localhost") { return url }
        } catch {
            throw ValidationError("--forward-to: \(error)")
        }
        throw ValidationError("--forward-to: write a URL of this machine, such as http://127.0.0.1:3000/webhooks")
    }

    private func secret() throws -> WebhookSecret? {
        guard let secretFile else { return nil }
        do {
            let text = String(decoding: try readFile(atPath: secretFile), as: UTF8.self)
            return try WebhookSecret(parsing: text.filter { !$0.isWhitespace })
        } catch {
            throw CommandFailure(.failed, "\(VisibleText.visible(secretFile)): \(error)")
        }
    }

    /// Runs `body` with a forwarder, or nil if the options name no URL.
    func withForwarder(_ body: (ChangeForwarder?) async throws -> Void) async throws {
        guard let url = try url(), let secret = try secret() else { return try await body(nil) }
        let client = try EndpointClient(
            url,
            concurrency: 1,
            settings: .init(policy: AddressPolicy(allowed: ChangeForwarder.loopback), version: Version.current),
            resolver: Resolver(),
            eventLoopGroup: EventLoops.ofCommand.group
        )
        let signer = WebhookSigner([.init(1, secret)])
        try await withCleanup(client.close) { try await body(ChangeForwarder(signer: signer, client: client)) }
    }
}

/// Posts events to a receiver of this machine, as the daemon would. An event that fails is not repeated.
struct ChangeForwarder: Sendable {
    fileprivate static let loopback = [AddressRange("127.0.0.0/8"), AddressRange("::1/128")].compactMap(\.self)
    private static let timeout = Duration.seconds(15)

    let signer: WebhookSigner
    let client: EndpointClient

    /// Returns a line about the response.
    func forward(_ change: PublishedChange) async throws -> String {
        let event = ChangeEvent(change)
        let body = Array(JSONText.object(event.members).line.utf8)
        let headers = try signer.headers(messageID: event.id, at: .now(), body: body)
        let start = ContinuousClock.now
        let result: String
        do throws(EndpointClient.Failure) {
            let status = try await post(body, headers).status
            result = "\(status)  \((ContinuousClock.now - start).milliseconds) ms"
        } catch {
            result = error.words
        }
        return "\(change.position)".padding(to: 10) + String(change.type.dropFirst(5)).padding(to: 27) + result
    }

    private func post(
        _ body: [UInt8],
        _ headers: [(name: String, value: String)]
    ) async throws(EndpointClient.Failure) -> EndpointClient.Response {
        let headers = headers + [("Content-Type", "application/json")]
        do throws(EndpointClient.Failure) {
            return try await client.post(body, headers: headers, timeout: Self.timeout)
        } catch  where error.reason == .unreachable && !error.mayHaveArrived {
            // The name localhost may have two addresses, of which the receiver listens on one. The client takes the other one.
            return try await client.post(body, headers: headers, timeout: Self.timeout)
        }
    }
}
