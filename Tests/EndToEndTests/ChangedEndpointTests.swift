import AccountStore
import Synchronization
import TestSupport
import Testing

@Suite("Deliveries while an endpoint is changed", .timeLimit(.minutes(10)))
struct ChangedEndpointTests {
    @Test("What the former URL answers, such as 410, does not disable the endpoint at its new URL.")
    func formerURL() async throws {
        let secret = try DaemonFixture.secret
        try await DaemonFixture.withDaemon(try DaemonFixture.delivering()) { fixture, _, _ in
            let late = WebhookReceiver.Answer.delayed(.seconds(5), 410)
            try await WebhookReceiver.with(secret, answering: { _, _ in late }) { former in
                try await WebhookReceiver.with(secret) { receiver in
                    try await fixture.addEndpoint("shop", former.url)
                    try await fixture.revoke(1)
                    try await eventually("the first request") { !former.messages.isEmpty }
                    try await fixture.run("UPDATE siwa.endpoints SET url = '\(receiver.url)'")
                    try await fixture.untilDelivered("shop delivered 1")
                    #expect(receiver.messages.count == 1)
                    #expect(try await fixture.texts("SELECT status FROM siwa.endpoints") == ["enabled"])
                }
            }
        }
    }

    @Test("A new URL is tried immediately, although the receiver at the former one asked for a pause of an hour.")
    func pause() async throws {
        let secret = try DaemonFixture.secret
        try await DaemonFixture.withDaemon(try DaemonFixture.delivering()) { fixture, _, _ in
            let busy = WebhookReceiver.Answer.status(503, ["Retry-After": "3600"])
            try await WebhookReceiver.with(secret, answering: { _, _ in busy }) { former in
                try await WebhookReceiver.with(secret) { receiver in
                    try await fixture.addEndpoint("shop", former.url)
                    try await fixture.revoke(1)
                    let state = "SELECT concat_ws(' ', last_reason, last_http_status) FROM siwa.endpoint_states"
                    try await eventually("the pause") { try await fixture.texts(state) == ["throttled 503"] }
                    try await fixture.endpoints("edit shop --rate 100")
                    #expect(try await fixture.texts(state) == ["throttled 503"])
                    try await fixture.endpoints("edit shop --url \(receiver.url)")
                    try await fixture.untilDelivered("shop delivered 1")
                    #expect(receiver.messages.count == 1)
                }
            }
        }
    }

    @Test("Requests from before a change count against the concurrency after it.")
    func concurrency() async throws {
        let arrivals = Mutex<[ContinuousClock.Instant]>([])
        try await DaemonFixture.withDaemon(try DaemonFixture.delivering()) { fixture, _, _ in
            try await WebhookReceiver.with(
                try DaemonFixture.secret,
                answering: { _, _ in
                    arrivals.withLock { $0.append(.now) }
                    return .never
                }
            ) { receiver in
                try await fixture.addEndpoint("shop", receiver.url) {
                    $0.concurrency = 1
                    $0.timeout = .seconds(6)
                }
                try await fixture.revoke(5)
                for rate in [100, 99] {
                    let count = arrivals.withLock(\.count)
                    try await eventually("the next request") { arrivals.withLock(\.count) > count }
                    try await fixture.run("UPDATE siwa.endpoints SET rate = \(rate)")
                }
                try await eventually("the third request") { arrivals.withLock(\.count) == 3 }
            }
        }
        let times = arrivals.withLock(\.self)
        for (former, next) in zip(times, times.dropFirst()) { #expect(next - former > .seconds(3)) }
    }

    @Test(
        "A request under way is answered in its time although its endpoint is paused or changed, and not repeated.",
        arguments: [("3s", "status = 'paused', status_reason = 'operator'"), ("0s", "rate = 100")]
    )
    func underWay(grace: String, change: String) async throws {
        let settings = try DaemonFixture.delivering(["SIWAD_SHUTDOWN_GRACE": grace])
        try await DaemonFixture.withDaemon(settings) { fixture, _, _ in
            let slow = WebhookReceiver.Answer.delayed(.seconds(4), 200)
            try await WebhookReceiver.with(try DaemonFixture.secret, answering: { _, _ in slow }) { receiver in
                try await fixture.addEndpoint("shop", receiver.url)
                try await fixture.revoke(1)
                try await eventually("the request") { receiver.messages.count == 1 }
                try await fixture.run("UPDATE siwa.endpoints SET \(change); NOTIFY \(Endpoints.channel)")
                try await fixture.untilDelivered("shop delivered 1")
                #expect(receiver.messages.count == 1)
            }
        }
    }

    @Test(
        "At SIGTERM, a request from before a change is given back after the grace, like the others.",
        arguments: [["paused"], ["paused", "enabled"]]
    )
    func terminated(changes: [String]) async throws {
        try await DaemonFixture.with { fixture in
            try await WebhookReceiver.with(try DaemonFixture.secret, answering: { _, _ in .never }) { receiver in
                try await fixture.addEndpoint("shop", receiver.url) { $0.timeout = .seconds(60) }
                try await fixture.revoke(1)
                let daemon = fixture.start(try DaemonFixture.delivering(["SIWAD_SHUTDOWN_GRACE": "3s"]))
                let addresses = try await daemon.ready()
                try await eventually("the request") { receiver.messages.count == 1 }
                for status in changes {
                    let reason = status == "paused" ? "'operator'" : "NULL"
                    let change = "status = '\(status)', status_reason = \(reason)"
                    try await fixture.run("UPDATE siwa.endpoints SET \(change); NOTIFY \(Endpoints.channel)")
                    let gauge = "siwad_endpoint_state{endpoint=\"shop\",state=\"\(status)\"} 1\n"
                    try await eventually("the daemon to read the change") {
                        try await Web.get(addresses.operations + "/metrics").body.contains(gauge)
                    }
                }
                daemon.send("TERM")
                #expect(try await daemon.end(within: .seconds(30)) == 0)
                let rows = "SELECT concat_ws(' ', status, attempts, claim, reason) FROM siwa.deliveries"
                #expect(try await fixture.texts(rows) == ["pending 0"])
            }
        }
    }
}
