import AppleTokens
import Glibc
import Ingest
import NIOCore

/// The bytes of every answer, ready but for the date. One per event loop.
struct Responses {
    /// What a client that sent `Expect: 100-continue` waits for.
    let interim = ByteBuffer(string: "HTTP/1.1 100 Continue\r\n\r\n")

    private struct Template {
        /// Status line and fields.
        let head: String
        let body: String
    }

    private var second: time_t = 0
    private var dateField = ""
    private var acknowledged = ByteBuffer()
    private var templates: [Outcome: Template] = [:]

    /// A whole answer.
    ///
    /// - Parameters:
    ///   - closing: says that no other request will be answered on the connection.
    ///   - withoutBody: for HEAD: the fields of the answer and nothing of its body.
    mutating func bytes(_ outcome: Outcome, closing: Bool, withoutBody: Bool) -> ByteBuffer {
        bringDateUpToTime()
        if case .acknowledged = outcome, !closing {
            return acknowledged
        }
        let template = template(outcome)
        let connection = closing ? "Connection: close\r\n" : ""
        return ByteBuffer(
            string: "\(template.head)\(dateField)\(connection)\r\n\(withoutBody ? "" : template.body)"
        )
    }

    private mutating func bringDateUpToTime() {
        let current = time(nil)
        guard current != second else { return }
        second = current
        dateField = "Date: \(Self.date(current))\r\n"
        acknowledged = ByteBuffer(string: "\(template(.acknowledged).head)\(dateField)\r\n")
    }

    private mutating func template(_ outcome: Outcome) -> Template {
        if let template = templates[outcome] {
            return template
        }
        let template = Self.render(outcome)
        if case .unavailable = outcome {
            // Its seconds vary: remembered, they would grow.
            return template
        }
        templates[outcome] = template
        return template
    }

    private static func render(_ outcome: Outcome) -> Template {
        switch outcome {
        case .acknowledged:
            return Template(head: "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n", body: "")
        case .refused(let rejection):
            let fields = rejection.status == 401 ? "WWW-Authenticate: JWS\r\n" : ""
            return problem(
                rejection.rawValue,
                rejection.status,
                phrase(rejection.status),
                rejection.title,
                rejection.detail,
                fields
            )
        case .unavailable(let reason, let seconds):
            return problem(
                reason.rawValue,
                503,
                phrase(503),
                reason.title,
                reason.detail,
                retryAfter(seconds)
            )
        case .answerTimedOut:
            return problem(
                "answer-timeout",
                503,
                phrase(503),
                "The notification could not be stored in time",
                "Send it again later.",
                retryAfter(10)
            )
        case .protocolError(let error):
            return problem(
                error.rawValue,
                error.status.code,
                error.status.phrase,
                error.title,
                error.detail,
                error.fields
            )
        }
    }

    private static func retryAfter(_ seconds: Int) -> String {
        "Retry-After: \(min(max(seconds, 1), 3600))\r\n"
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

    /// RFC 9457.
    private static func problem(
        _ reason: String,
        _ status: Int,
        _ phrase: String,
        _ title: String,
        _ detail: String,
        _ fields: String
    ) -> Template {
        let body = """
            {"type":"urn:siwad:problem:\(escaped(reason))","title":"\(escaped(title))","status":\(status),\
            "detail":"\(escaped(detail))"}
            """
        let head =
            "HTTP/1.1 \(status) \(phrase)\r\nContent-Type: application/problem+json\r\n"
            + "Content-Length: \(body.utf8.count)\r\n\(fields)"
        return Template(head: head, body: body)
    }

    /// The texts are ours and hold no control characters.
    private static func escaped(_ text: String) -> String {
        var escaped = ""
        for character in text {
            if character == "\"" || character == "\\" { escaped.append("\\") }
            escaped.append(character)
        }
        return escaped
    }

    /// RFC 9110 §5.6.7: `Sun, 06 Nov 1994 08:49:37 GMT`, in English whatever the locale.
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
