import AccountStore
import Basics
import Effects
import Testing

@Suite("The meaning of an endpoint's answer")
struct AttemptOutcomeTests {
    /// 2026-11-23T10:11:12Z, a Monday.
    private static let now = WallTime(milliseconds: 1_795_428_672_000)

    private func outcome(_ status: Int, retryAfter: String? = nil, delivery: String? = nil) -> AttemptOutcome {
        let answer = EndpointAnswer.answered(status: status, retryAfter: retryAfter, delivery: delivery)
        return AttemptOutcome(answer, now: Self.now)
    }

    @Test("Every status has the meaning of its class, 410 and 429 have their own.")
    func statuses() {
        for status in 100..<1_000 {
            let expected: AttemptOutcome =
                switch status {
                case 200..<300: .delivered
                case 300..<400: .failed(.redirected)
                case 410: .gone
                case 429: .throttled(.seconds(60))
                case 400..<500: .failed(.refused)
                case 500..<600: .failed(.failed)
                default: .failed(.malformedAnswer)
                }
            #expect(outcome(status) == expected, "\(status)")
        }
    }

    @Test("A 503 is a request for a pause only if it says how long.")
    func unavailable() {
        #expect(outcome(503) == .failed(.failed))
        #expect(outcome(503, retryAfter: "7") == .throttled(.seconds(7)))
        #expect(outcome(500, retryAfter: "7") == .failed(.failed))
        #expect(outcome(200, retryAfter: "7") == .delivered)
    }

    @Test(
        "Retry-After is seconds or a date, between a second and an hour; anything else is a minute.",
        arguments: [
            ("0", 1), ("1", 1), ("30", 30), (" 30", 30), ("3600", 3_600), ("3601", 3_600),
            ("99999999999999999999", 3_600),
            ("-5", 60), ("", 60), ("soon", 60), ("1.5", 60), ("٣", 60), ("Mon, 23 Nov 2026", 60),
            ("Mon, 23 Nov 2026 10:13:12 GMT", 120), ("Mon, 23 Nov 2026 09:00:00 GMT", 1),
            ("Fri, 31 Dec 9999 23:59:59 GMT", 3_600), ("Mon, 23 Nov 2026 25:13:12 GMT", 60),
        ]
    )
    func retryAfter(text: String, seconds: Int) {
        #expect(outcome(429, retryAfter: text) == .throttled(.seconds(seconds)))
    }

    @Test("A receiver can ask to be disabled, and for no further attempt of a change.")
    func requests() {
        #expect(outcome(500, delivery: "disable") == .gone)
        #expect(outcome(400, delivery: "Disable") == .gone)
        #expect(outcome(204, delivery: "disable") == .gone, "whatever the status")
        #expect(outcome(429, delivery: "disable") == .gone)
        #expect(outcome(429, delivery: "abort-message") == .aborted)
        #expect(outcome(400, delivery: "abort-message") == .aborted)
        #expect(outcome(410, delivery: "abort-message") == .gone)
        #expect(outcome(400, delivery: "other") == .failed(.refused))
        #expect(outcome(204, delivery: "abort-message") == .delivered)
        #expect(outcome(204, delivery: "other") == .delivered)
    }

    @Test("Without an answer, the attempt failed for the reason of the client.", arguments: DeliveryReason.allCases)
    func unanswered(reason: DeliveryReason) {
        let outcome = AttemptOutcome(.unanswered(reason, "words"), now: Self.now)
        #expect(outcome == .failed(reason))
        #expect(outcome.reason == reason)
    }
}
