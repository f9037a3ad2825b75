import AppleTokens
import Ingest
import Telemetry

/// The outcome of a request, which determines its response.
enum Outcome: Hashable, Sendable {
    case acknowledged
    /// Refused by verification, or because of its size.
    case refused(Rejection)
    case unavailable(Unavailability, retryAfterSeconds: Int)
    /// 503: no response was delivered before the deadline.
    case responseTimedOut
    /// Refused before its body was used.
    case protocolError(ProtocolError)

    init(_ response: IngestResponse) {
        switch response {
        case .acknowledged: self = .acknowledged
        case .refused(let rejection): self = .refused(rejection)
        case .unavailable(let reason, let seconds): self = .unavailable(reason, retryAfterSeconds: seconds)
        }
    }

    func count(in metrics: SiwadMetrics) {
        switch self {
        case .acknowledged:
            break
        case .refused(let rejection):
            metrics.rejections.increment(rejection.rawValue)
        case .unavailable(let reason, _):
            metrics.unavailable.increment(reason.rawValue)
        case .responseTimedOut:
            metrics.unavailable.increment("answer-timeout")
        case .protocolError(let error):
            if error.isCounted {
                metrics.rejections.increment(error.rawValue)
            }
        }
    }
}

/// A request that violates HTTP or is not for the endpoint. The `type` of the response ends in the raw value.
enum ProtocolError: String, Sendable, CaseIterable {
    case malformedRequest = "malformed-request"
    case headersTooLarge = "headers-too-large"
    case unsupportedVersion = "unsupported-version"
    case unsupportedEncoding = "unsupported-encoding"
    case unsupportedExpectation = "unsupported-expectation"
    case requestTimeout = "request-timeout"
    case notFound = "not-found"
    case methodNotAllowed = "method-not-allowed"

    /// Status code, title (the same for every occurrence, RFC 9457 §3.1.3) and advice for the sender.
    var problem: (status: Int, title: String, detail: String) {
        switch self {
        case .malformedRequest:
            (
                400, "The request is not HTTP",
                "Send a well-formed HTTP/1.1 request with one Host and one length of the body."
            )
        case .headersTooLarge: (431, "The head of the request is too large", "Send fewer or shorter header fields.")
        case .unsupportedVersion: (505, "The version of HTTP is not supported", "Use HTTP/1.1.")
        case .unsupportedEncoding: (415, "The body is encoded", "Send the body without Content-Encoding.")
        case .unsupportedExpectation: (417, "The expectation is not known", "Expect nothing but 100-continue.")
        case .requestTimeout: (408, "The request took too long", "Send the whole request without a pause.")
        case .notFound: (404, "Nothing is here", "Check the path of the URL that is registered at Apple.")
        case .methodNotAllowed: (405, "The method is not allowed", "Notifications are sent with POST.")
        }
    }

    /// The header fields that the status requires, each with its line end.
    var fields: String {
        switch self {
        case .methodNotAllowed: "Allow: POST\r\n"
        case .unsupportedEncoding: "Accept-Encoding: identity\r\n"
        case .malformedRequest, .headersTooLarge, .unsupportedVersion, .unsupportedExpectation, .requestTimeout,
            .notFound:
            ""
        }
    }

    /// False for requests that scan the host for something else.
    var isCounted: Bool { self != .notFound && self != .methodNotAllowed }
}
