import AccountStore
import Effects
import Listening
import Settings
import WebClient

extension Configuration {
    /// Settings of the connections to endpoints.
    var endpointClient: EndpointClient.Settings {
        EndpointClient.Settings(
            policy: AddressPolicy(allowed: deliveryAllow),
            authorities: deliveryCA,
            proxy: deliveryProxy,
            version: Version.current
        )
    }

    /// - Throws: `SettingsError` if the file of authorities can't be read: without it, each request would fail.
    func checkDeliveryAuthorities() throws(SettingsError) {
        do throws(WebClientError) {
            try endpointClient.checkAuthorities()
        } catch {
            throw problem(.deliveryCA, error.message)
        }
    }
}

extension Dispatcher.Connections {
    /// Connections to endpoints, with the settings that SIGHUP replaces.
    ///
    /// - Parameter proxy: `SIWAD_DELIVERY_PROXY` at the start, which it doesn't replace.
    init(_ configuration: Configuration, proxy: String?, _ resolver: Resolver, on loops: EventLoops) {
        var settings = configuration.endpointClient
        settings.proxy = proxy
        self.init(keys: configuration.sealingKeys) { [settings] endpoint in
            let client = try EndpointClient(
                EndpointURL(parsing: endpoint.configuration.url ?? ""),
                concurrency: endpoint.configuration.concurrency,
                settings: settings,
                resolver: resolver,
                eventLoopGroup: loops.group
            )
            return EndpointTransport(
                executor: loops.executor(),
                post: { await client.answer(to: $0) },
                close: { await client.close() }
            )
        }
    }
}

extension EndpointClient {
    fileprivate func answer(to request: EndpointRequest) async -> EndpointAnswer {
        do throws(Failure) {
            let answer = try await post(request.body, headers: request.headers, timeout: request.timeout)
            return .answered(status: answer.status, retryAfter: answer.retryAfter, delivery: answer.delivery)
        } catch {
            return .unanswered(error.reason.stored, error.words)
        }
    }
}

extension EndpointClient.Reason {
    fileprivate var stored: DeliveryReason {
        switch self {
        case .timedOut: .timedOut
        case .unreachable: .unreachable
        case .tls: .tls
        case .blocked: .blocked
        case .malformedAnswer: .malformedAnswer
        }
    }
}
