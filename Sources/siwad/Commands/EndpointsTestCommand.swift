import AccountStore
import AppleTokens
import ArgumentParser
import Basics
import Effects
import JOSE
import Listening
import Postgres
import Terminal
import WebClient
import Webhooks

struct EndpointsTestCommand: DatabaseCommand {
    static let configuration = CommandConfiguration(
        commandName: "test",
        abstract: "Post a signed test event to an endpoint from this machine, now.",
        usage: "siwad endpoints test <name> [<options>]",
        discussion: """
            The event has the type siwa.endpoint.test, which receivers ignore. With --type, it is an example of that \
            type about the person 000000.test, who does not exist. The command uses its own \
            settings SIWAD_DELIVERY_…, so give it the daemon's.

            Exits with 0 if the answer counts as a delivery, 1 if it does not, 69 if there is no response.

            Example:
              siwad endpoints test shop
            """
    )

    @OptionGroup var endpoint: EndpointNameOptions
    @Option(help: ArgumentHelp("Type of the event, such as consent.revoked.", valueName: "type"))
    var type: ChangeEvent.Kind?
    @OptionGroup var database: DatabaseOptions

    func run(_ invocation: Invocation) async throws {
        let (options, keys, type) = (endpoint, try invocation.sealingKeys(orElse: "nothing can be signed"), type)
        let (endpoint, generations) = try await invocation.read { session in
            let endpoint = try options.find(in: session)
            let live = try EndpointSecrets.live(of: endpoint.id, in: session)
                .filter { endpoint.configuration.signature.purposes.contains($0.purpose) }
            return (endpoint, try live.compactMap { try $0.generation(of: endpoint, keys) })
        }
        let event = try TestEvent(type, to: endpoint)
        let headers = try WebhookSigner(generations).headers(messageID: event.id, at: .now(), body: event.body)
        let url = try EndpointURL(parsing: endpoint.configuration.url ?? "")
        let start = ContinuousClock.now
        let response: EndpointClient.Response
        do throws(EndpointClient.Failure) {
            let timeout = endpoint.configuration.timeout
            response = try await Self.post(event.body, headers, to: url, within: timeout, invocation)
        } catch {
            throw CommandFailure(.unavailable, line: "\(url): \(error.reason.rawValue): \(error.words)")
        }
        let facts = [
            ("url", url.description), ("message", event.id),
            ("address", response.connection.address?.description ?? "chosen by the proxy"),
            ("encryption", response.connection.encryption ?? "none"),
            ("answer", "\(response.status), in \((ContinuousClock.now - start).milliseconds) ms"),
        ]
        invocation.console.print(lines: invocation.console.style.facts(facts, nameWidth: 12))
        let meaning = AttemptOutcome(
            .answered(status: response.status, retryAfter: response.retryAfter, delivery: response.delivery),
            now: .now()
        )
        guard let failure = meaning.failure else { return }
        throw CommandFailure(
            .failed,
            "the receiver answered \(response.status)\(failure.consequence)",
            nextStep: failure.nextStep
        )
    }

    private static func post(
        _ body: [UInt8],
        _ headers: [(name: String, value: String)],
        to url: EndpointURL,
        within timeout: Duration,
        _ invocation: Invocation
    ) async throws(EndpointClient.Failure) -> EndpointClient.Response {
        let settings = invocation.configuration.endpointClient
        let client: EndpointClient
        do throws(WebClientError) {
            client = try EndpointClient(
                url,
                concurrency: 1,
                settings: settings,
                resolver: Resolver(),
                eventLoopGroup: EventLoops.ofCommand.group
            )
        } catch {
            throw EndpointClient.Failure(.unreachable, error.message)
        }
        return try await withCleanup(client.close) { () async throws(EndpointClient.Failure) in
            let type = (name: "Content-Type", value: "application/json")
            return try await client.post(body, headers: headers + [type], timeout: timeout)
        }
    }
}

extension AttemptOutcome {
    /// What siwad would do with a real event, to follow the status; nil if it counts as delivered.
    fileprivate var failure: (consequence: String, nextStep: String)? {
        let log = "look in its log for the cause"
        return switch self {
        case .delivered: nil
        case .failed(.redirected):
            (", a redirect, which siwad does not follow", "change the URL with siwad endpoints edit")
        case .failed: (", so siwad would attempt the event again", log)
        case .aborted: (" and asks for no further attempt, so siwad would give the event up", log)
        case .gone: (" and asks for no more events, so siwad would disable the endpoint", log)
        case .throttled(let pause): (" and asks for a pause, so siwad would wait for \(pause.rounded)", log)
        }
    }
}

/// An event that no change caused.
private struct TestEvent {
    let id: String
    let body: [UInt8]

    /// - Parameter kind: of an example; nil: `siwa.endpoint.test`.
    init(_ kind: ChangeEvent.Kind?, to endpoint: Endpoint) throws {
        let now = WallTime.now()
        guard let kind else {
            id = "msg_" + (try SecureRandom.bytes(16)).hexadecimal
            let data: [JSONText.Member] = [.init("version", .integer(1)), .init("endpoint", .string(endpoint.name))]
            let members: [JSONText.Member] = [
                .init("type", .string("siwa.endpoint.test")),
                .init("timestamp", .string(WallTime(milliseconds: now.wholeMilliseconds).iso8601)),
                .init("data", .object(data)),
            ]
            body = Array(JSONText.object(members).line.utf8)
            return
        }
        let example = Self.example(kind)
        let event = ChangeEvent(
            PublishedChange(
                position: 1,
                publishedAt: now,
                type: kind.rawValue,
                scope: ["consent", "session"].contains(example.facet) ? "app" : "team",
                team: TeamID("AAAAAAAAAA"),
                subject: Subject("000000.test"),
                app: AppID(endpoint.configuration.apps?.first ?? "com.example.app"),
                facet: example.facet,
                fromState: example.from,
                toState: example.to,
                eventTime: now,
                recordedAt: now,
                notificationID: kind == .consentAuthorized ? nil : "test",
                sessionsEnded: 1,
                sessionID: nil,
                accountID: 0,
                changeID: 0
            )
        )
        id = event.id
        body = Array(JSONText.object(event.members).line.utf8)
    }

    private static func example(_ kind: ChangeEvent.Kind) -> (facet: String, from: String, to: String) {
        switch kind {
        case .consentRevoked: ("consent", "authorized", "revoked")
        case .consentAuthorized: ("consent", "unknown", "authorized")
        case .sessionsEnded: ("consent", "authorized", "authorized")
        case .accountDeleted: ("account", "active", "deleted")
        case .forwardingDisabled: ("email", "deliverable", "undeliverable")
        case .forwardingEnabled: ("email", "undeliverable", "deliverable")
        }
    }
}

extension SealedEndpointSecret {
    /// nil for a secret that signs nothing.
    fileprivate func generation(of endpoint: Endpoint, _ keys: SealingKeys) throws -> WebhookSigner.Generation? {
        try opened(of: endpoint, keys).map { WebhookSigner.Generation(generation, $0, expiresAt: expiresAt) }
    }
}
