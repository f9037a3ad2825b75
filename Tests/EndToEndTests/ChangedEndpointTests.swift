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
}
