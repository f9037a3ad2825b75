import AppleTokens
import Basics
import Ingest
import JOSE
import NIOCore
import NIOHTTP1

/// Renders responses and caches everything in them but the date. One per event loop.
struct Responses {
    let interim = ByteBuffer(string: "HTTP/1.1 100 Continue\r\n\r\n")

    private struct Template {
        /// Status line and header fields.
        let head: String
        let body: String
    }

    private var second: Int64 = 0
    private var dateField = ""
    private var acknowledged = ByteBuffer()
    private var templates: [Outcome: Template] = [:]

    /// - Parameters:
    ///   - closing: true if the connection ends with this response.
    ///   - withoutBody: true for the response to HEAD.
    mutating func bytes(_ outcome: Outcome, closing: Bool, withoutBody: Bool) -> ByteBuffer {
        updateDate()
        if case .acknowledged = outcome, !closing {
            return acknowledged
        }
        let template = template(outcome)
        let connection = closing ? "Connection: close\r\n" : ""
        return ByteBuffer(string: "\(template.head)\(dateField)\(connection)\r\n\(withoutBody ? "" : template.body)")
    }

    private mutating func updateDate() {
        let now = WallTime.now()
        guard now.wholeSeconds != second else { return }
        second = now.wholeSeconds
        dateField = "Date: \(now.httpDate)\r\n"
        acknowledged = ByteBuffer(string: "\(template(.acknowledged).head)\(dateField)\r\n")
    }

    private mutating func template(_ outcome: Outcome) -> Template {
        // Not cached: its seconds vary, so the cache would grow.
        if case .unavailable = outcome { return Self.render(outcome) }
        let template = templates[outcome] ?? Self.render(outcome)
        templates[outcome] = template
        return template
    }

    private static func render(_ outcome: Outcome) -> Template {
        switch outcome {
        case .acknowledged:
            return Template(head: "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n", body: "")
        case .refused(let rejection):
            let fields = rejection.status == 401 ? "WWW-Authenticate: JWS\r\n" : ""
            return problem(rejection.rawValue, (rejection.status, rejection.title, rejection.detail), fields)
        case .unavailable(let reason, let seconds):
            let fields = "Retry-After: \(min(max(seconds, 1), 3600))\r\n"
            return problem(reason.rawValue, (503, reason.title, reason.detail), fields)
        case .responseTimedOut:
            let title = "The notification could not be stored in time"
            return problem("answer-timeout", (503, title, "Send it again later."), "Retry-After: 10\r\n")
        case .protocolError(let error):
            return problem(error.rawValue, error.problem, error.fields)
        }
    }

    /// A response as RFC 9457 defines it.
    private static func problem(
        _ reason: String,
        _ problem: (status: Int, title: String, detail: String),
        _ fields: String
    ) -> Template {
        let body = JSONValue.object([
            JSONValue.Member("type", .string("urn:siwad:problem:\(reason)")),
            JSONValue.Member("title", .string(problem.title)),
            JSONValue.Member("status", .number(JSONNumber(Int64(problem.status)))),
            JSONValue.Member("detail", .string(problem.detail)),
        ]).compactText
        // RFC 9110 gave 413 another phrase than NIO knows.
        let phrase =
            problem.status == 413
            ? "Content Too Large" : HTTPResponseStatus(statusCode: problem.status).reasonPhrase
        let head =
            "HTTP/1.1 \(problem.status) \(phrase)\r\nContent-Type: application/problem+json\r\n"
            + "Content-Length: \(body.utf8.count)\r\n\(fields)"
        return Template(head: head, body: body)
    }
}
