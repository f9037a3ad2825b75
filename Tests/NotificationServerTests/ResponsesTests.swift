import AppleTokens
import Basics
import Ingest
import NIOCore
import Telemetry
import Testing

@testable import NotificationServer

@Suite("The bytes of responses")
struct ResponsesTests {
    private static let outcomes: [Outcome] =
        [.acknowledged, .responseTimedOut]
        + Rejection.allCases.map { .refused($0) }
        + Unavailability.allCases.map { .unavailable($0, retryAfterSeconds: 3) }
        + ProtocolError.allCases.map { .protocolError($0) }

    @Test("Every response is framed by its length, and HEAD gets only the head.", arguments: outcomes)
    func framing(_ outcome: Outcome) throws {
        var responses = Responses()
        for isClosing in [false, true] {
            let text = String(buffer: responses.bytes(outcome, closing: isClosing, withoutBody: false))
            let end = try #require(text.firstRange(of: "\r\n\r\n"))
            let body = text[end.upperBound...]
            #expect(text[..<end.lowerBound].contains("\r\nContent-Length: \(body.utf8.count)"))
            #expect(text.hasPrefix("HTTP/1.1 "))
            #expect(text.contains("\r\nDate: "))
            #expect(text.contains("\r\nConnection: close\r\n") == isClosing)
            let head = String(buffer: responses.bytes(outcome, closing: isClosing, withoutBody: true))
            #expect(head.contains("\r\nDate: "))
            #expect(withoutDate(head) == withoutDate(String(text[..<end.upperBound])))
        }
    }

    /// Two responses may be from different seconds.
    private func withoutDate(_ head: String) -> String {
        head.replacing(/\r\nDate: [^\r]+/, with: "")
    }

    @Test("Every refusal is counted with a reason from the closed set of the metric.", arguments: outcomes)
    func counted(_ outcome: Outcome) {
        let metrics = SiwadMetrics(version: "test", appIDs: [])
        outcome.count(in: metrics)
        #expect(!metrics.registry.prometheusText().contains("\"other\""))
    }

    @Test("Retry-After stays between a second and an hour.", arguments: [(-1, 1), (0, 1), (60, 60), (Int.max, 3600)])
    func retryAfter(_ seconds: Int, _ sent: Int) {
        var responses = Responses()
        let outcome = Outcome.unavailable(.queueFull, retryAfterSeconds: seconds)
        let text = String(buffer: responses.bytes(outcome, closing: false, withoutBody: false))
        #expect(text.contains("\r\nRetry-After: \(sent)\r\n"))
    }

    @Test("Dates have the format of HTTP.")
    func date() {
        #expect(WallTime(seconds: 784_111_777).httpDate == "Sun, 06 Nov 1994 08:49:37 GMT")
        #expect(WallTime(seconds: 0).httpDate == "Thu, 01 Jan 1970 00:00:00 GMT")
    }
}
