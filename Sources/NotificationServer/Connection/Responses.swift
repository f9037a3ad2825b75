import AppleTokens
import Glibc
import Ingest
import NIOCore

/// Renders responses and caches everything in them but the date. One per event loop.
struct Responses {
    let interim = ByteBuffer(string: "HTTP/1.1 100 Continue\r\n\r\n")

    private struct Template {
        /// Status line and header fields.
        let head: String
        let body: String
    }

    private var second: time_t = 0
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
        let current = time(nil)
        guard current != second else { return }
        second = current
        dateField = "Date: \(Self.date(current))\r\n"
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
            let status = rejection.status
            return problem(rejection.rawValue, (status, phrase(status), rejection.title, rejection.detail), fields)
        case .unavailable(let reason, let seconds):
            let fields = "Retry-After: \(min(max(seconds, 1), 3600))\r\n"
            return problem(reason.rawValue, (503, phrase(503), reason.title, reason.detail), fields)
        case .answerTimedOut:
            let title = "The notification could not be stored in time"
            return problem("answer-timeout", (503, phrase(503), title, "Send it again later."), "Retry-After: 10\r\n")
        case .protocolError(let error):
            return problem(error.rawValue, error.problem, error.fields)
        }
    }

    private static func phrase(_ status: Int) -> String {
        switch status {
        case 400: "Bad Request"
        case 401: "Unauthorized"
        case 413: "Content Too Large"
        case 503: "Service Unavailable"
        default: "Refused"
        }
    }

    /// A response as RFC 9457 defines it.
    private static func problem(
        _ reason: String,
        _ problem: (status: Int, phrase: String, title: String, detail: String),
        _ fields: String
    ) -> Template {
        let body = """
            {"type":"urn:siwad:problem:\(escaped(reason))","title":"\(escaped(problem.title))",\
            "status":\(problem.status),"detail":"\(escaped(problem.detail))"}
            """
        let head =
            "HTTP/1.1 \(problem.status) \(problem.phrase)\r\nContent-Type: application/problem+json\r\n"
            + "Content-Length: \(body.utf8.count)\r\n\(fields)"
        return Template(head: head, body: body)
    }

    /// The texts are constants of this program without control characters.
    private static func escaped(_ text: String) -> String {
        var escaped = ""
        for character in text {
            if character == "\"" || character == "\\" { escaped.append("\\") }
            escaped.append(character)
        }
        return escaped
    }

    /// RFC 9110 §5.6.7: `Sun, 06 Nov 1994 08:49:37 GMT`, in English in every locale.
    static func date(_ time: time_t) -> String {
        var time = time
        var parts = tm()
        gmtime_r(&time, &parts)
        let days = ["Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"]
        let months = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]
        func padded(_ number: Int32) -> String { number < 10 ? "0\(number)" : "\(number)" }
        let date = "\(padded(parts.tm_mday)) \(months[Int(parts.tm_mon)]) \(1900 + parts.tm_year)"
        let clock = "\(padded(parts.tm_hour)):\(padded(parts.tm_min)):\(padded(parts.tm_sec))"
        return "\(days[Int(parts.tm_wday)]), \(date) \(clock) GMT"
    }
}
