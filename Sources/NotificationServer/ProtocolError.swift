/// What HTTP itself refuses, before a body is looked at. Raw values end the `type` of the answer.
enum ProtocolError: String, Sendable, CaseIterable {
    case malformedRequest = "malformed-request"
    case headersTooLarge = "headers-too-large"
    case unsupportedVersion = "unsupported-version"
    case unsupportedEncoding = "unsupported-encoding"
    case unsupportedExpectation = "unsupported-expectation"
    case requestTimeout = "request-timeout"
    case notFound = "not-found"
    case methodNotAllowed = "method-not-allowed"

    /// Status code and reason phrase.
    var status: (code: Int, phrase: String) {
        switch self {
        case .malformedRequest: (400, "Bad Request")
        case .headersTooLarge: (431, "Request Header Fields Too Large")
        case .unsupportedVersion: (505, "HTTP Version Not Supported")
        case .unsupportedEncoding: (415, "Unsupported Media Type")
        case .unsupportedExpectation: (417, "Expectation Failed")
        case .requestTimeout: (408, "Request Timeout")
        case .notFound: (404, "Not Found")
        case .methodNotAllowed: (405, "Method Not Allowed")
        }
    }

    /// A short name of the mistake.
    var title: String {
        switch self {
        case .malformedRequest: "The request is not HTTP"
        case .headersTooLarge: "The head of the request is too large"
        case .unsupportedVersion: "The version of HTTP is not supported"
        case .unsupportedEncoding: "The body is encoded"
        case .unsupportedExpectation: "The expectation is not known"
        case .requestTimeout: "The request took too long"
        case .notFound: "Nothing is here"
        case .methodNotAllowed: "The method is not allowed"
        }
    }

    /// What to do about it.
    var detail: String {
        switch self {
        case .malformedRequest: "Send a well-formed HTTP/1.1 request with one Host and one length of the body."
        case .headersTooLarge: "Send fewer or shorter header fields."
        case .unsupportedVersion: "Use HTTP/1.1."
        case .unsupportedEncoding: "Send the body without Content-Encoding."
        case .unsupportedExpectation: "Expect nothing but 100-continue."
        case .requestTimeout: "Send the whole request at once."
        case .notFound: "Check the path of the URL that is registered at Apple."
        case .methodNotAllowed: "Notifications are sent with POST."
        }
    }

    /// Header fields that the status asks for, each with its line end.
    var fields: String {
        switch self {
        case .methodNotAllowed: "Allow: POST\r\n"
        case .unsupportedEncoding: "Accept-Encoding: identity\r\n"
        case .malformedRequest, .headersTooLarge, .unsupportedVersion, .unsupportedExpectation, .requestTimeout,
            .notFound:
            ""
        }
    }

    /// Whether it counts as a rejection. What only looks for something else on this host does not.
    var isCounted: Bool {
        switch self {
        case .malformedRequest, .headersTooLarge, .unsupportedVersion, .unsupportedEncoding, .unsupportedExpectation,
            .requestTimeout:
            true
        case .notFound, .methodNotAllowed: false
        }
    }
}
