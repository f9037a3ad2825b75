import Basics
import Terminal
import Testing

@testable import AccountStore
@testable import siwad

@Suite("The list and the page of endpoints")
struct EndpointListingTests {
    private static let now = WallTime(seconds: 1_790_000_000)

    private func overview(
        of configuration: EndpointConfiguration = EndpointConfiguration(name: "shop", url: "https://a.example/"),
        status: Endpoint.Status = .enabled,
        reason: Endpoint.StatusReason? = nil,
        retry: Int = 0,
        oldestRetryAt: WallTime? = nil,
        _ change: (inout EndpointState) -> Void = { _ in }
    ) -> EndpointOverview {
        var state = EndpointState()
        change(&state)
        let endpoint = Endpoint(
            id: 1,
            configuration: configuration,
            status: status,
            statusReason: reason,
            statusAt: Self.now,
            createdAt: Self.now
        )
        return EndpointOverview(
            endpoint: endpoint,
            state: state,
            position: 4711,
            behind: 0,
            oldestAt: nil,
            retry: retry,
            oldestRetryAt: oldestRetryAt,
            dead: 0,
            pauseNote: nil,
            fingerprint: nil
        )
    }

    private func json(_ overview: EndpointOverview) -> String {
        EndpointListing.columns(now: Self.now).object(of: overview).line
    }

    private func page(_ overview: EndpointOverview) -> EndpointPage { EndpointPage(overview, now: Self.now) }

    @Test("The doctor warns of an endpoint whose failed deliveries have waited for more than an hour.")
    func oldRetries() {
        func finding(_ age: Duration) -> Finding? {
            let overview = overview(retry: 2, oldestRetryAt: Self.now - age)
            return Finding.endpoints([overview], addressFailures: [:], now: Self.now).first
        }
        #expect(finding(.seconds(60))?.status == .pass)
        #expect(finding(.seconds(7_200))?.status == .warn)
        #expect(finding(.seconds(7_200))?.detail == "enabled, 0 behind; 2 to be tried again, the oldest for 2 h")
    }

    @Test("An endpoint whose receiver asked for a pause says so, and when it is asked again.")
    func throttled() {
        let throttled = overview {
            ($0.openUntil, $0.probeDelay) = (Self.now + .seconds(40), .seconds(5))
            ($0.lastReason, $0.lastHTTPStatus, $0.lastDetail) = ("throttled", 429, "answered 429")
        }
        let why = "throttled (HTTP 429); asked again in 40 s"
        #expect(throttled.why(now: Self.now) == why)
        #expect(throttled.why(now: Self.now + .seconds(40))?.hasSuffix("asked again now") == true)
        let line = EndpointListing.list([throttled], now: Self.now).lines(style: .plain).last
        #expect(line?.contains(" open ") == true && line?.hasSuffix(why) == true, "\(line ?? "")")
        let members = #""reason":"throttled","http_status":429,"detail":"answered 429""#
        #expect(json(throttled).contains(members) && json(throttled).contains(#""circuit":"open""#))
        #expect(page(throttled).lines(style: .plain).contains { $0.contains("why") && $0.hasSuffix(why) })
    }

    @Test("Without an answer, the cause is in siwad's words; otherwise the status says it.")
    func words() {
        func failing(_ status: Int?, _ detail: String?) -> EndpointOverview {
            overview {
                ($0.failingSince, $0.openUntil, $0.probeDelay) = (Self.now, Self.now + .seconds(250), .seconds(300))
                ($0.lastReason, $0.lastHTTPStatus, $0.lastDetail) = ("failed", status, detail)
            }
        }
        #expect(
            failing(nil, "connection refused").why(now: Self.now)
                == "failed: connection refused; probed again in 4 min"
        )
        #expect(failing(503, "answered 503").why(now: Self.now) == "failed (HTTP 503); probed again in 4 min")
        #expect(failing(nil, nil).why(now: Self.now) == "failed; probed again in 4 min")
        #expect(json(failing(nil, "a\u{1b}")).contains(#""http_status":null,"detail":"a\u001b""#))
        #expect(!page(failing(nil, "a\u{1b}")).lines(style: .plain).joined().contains("\u{1b}"))
    }

    @Test("After a success, the last failure is no reason, and a disabled endpoint keeps it.")
    func afterwards() {
        func last(_ state: inout EndpointState) { (state.lastReason, state.lastDetail) = ("tls", "words") }
        #expect(overview(last).why(now: Self.now) == nil)
        #expect(json(overview(last)).contains(#""reason":null,"http_status":null,"detail":null"#))
        let disabled = overview(status: .disabled, reason: .failing, last)
        #expect(disabled.why(now: Self.now) == "failing: tls: words")
    }

    @Test("Numbers of the configuration are numbers in JSON, and no filter is null.")
    func configuration() {
        let usual = page(overview()).json[0].line
        for member in [#""types":null"#, #""apps":null"#, #""concurrency":8"#, #""rate":null"#, #""include":[]"#] {
            #expect(usual.contains(member + ","), "\(member): \(usual)")
        }
        var configuration = EndpointConfiguration(name: "shop", url: "https://a.example/")
        (configuration.types, configuration.apps) = (["siwa.consent.revoked"], ["com.example.app"])
        (configuration.concurrency, configuration.rate, configuration.retries) = (1, 0.5, [])
        let special = page(overview(of: configuration)).json[0].line
        for member in [
            #""types":["siwa.consent.revoked"]"#, #""apps":["com.example.app"]"#, #""concurrency":1"#, #""rate":0.5"#,
            #""retries":[]"#,
        ] {
            #expect(special.contains(member + ","), "\(member): \(special)")
        }
    }
}
