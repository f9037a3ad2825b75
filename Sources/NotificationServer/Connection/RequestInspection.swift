import Basics
import NIOHTTP1

/// Checks the head of a request against HTTP and the contract of the endpoint.
///
/// NIO's decoder already refuses heads that are not HTTP, bare line feeds, two framings, lengths that are not numbers, and
/// transfer codings that do not end in `chunked`. The framing is checked here again, because a proxy that disagrees about
/// the end of a request lets one sender write into the connection of another (request smuggling).
struct RequestInspection: Sendable {
    enum Judgement: Equatable {
        case accepted(Acceptance)
        /// Refused with a certain end: the connection continues after its body, unless it is the last request.
        case refused(ProtocolError, isLast: Bool)
        /// Refused because of its Content-Length: nothing more is read.
        case tooLarge
        /// Refused with an uncertain end: nothing more is read.
        case broken(ProtocolError)
    }

    struct Acceptance: Equatable {
        /// `nil` for chunks.
        var contentLength: Int?
        /// The client waits for `100 Continue` before it sends its body.
        var expectsContinue: Bool
        /// The connection ends with the response.
        var isLast: Bool
    }

    let path: String
    let bodyLimit: Int

    func judge(_ head: HTTPRequestHead) -> Judgement {
        guard head.version.major == 1, head.version.minor <= 1 else { return .broken(.unsupportedVersion) }
        guard let fields = Fields(head.headers), fields.isFramed(in: head.version) else {
            return .broken(.malformedRequest)
        }
        // After a request to change the protocol anything may follow, and HTTP/1.0 connections end by default.
        let isLast = !head.isKeepAlive || fields.upgrades || head.version.minor == 0
        let expectation = head.version.minor == 0 ? .none : fields.expectation
        if let error = error(head, fields, expectation) {
            // A client that waits for 100 Continue may never send its body, and a large one is not worth reading.
            let endIsCertain =
                expectation == .none && (fields.contentLength ?? 0) <= bodyLimit && head.method != .CONNECT
            return endIsCertain ? .refused(error, isLast: isLast) : .broken(error)
        }
        guard (fields.contentLength ?? 0) <= bodyLimit else { return .tooLarge }
        let length = fields.isChunked ? nil : fields.contentLength ?? 0
        return .accepted(
            Acceptance(contentLength: length, expectsContinue: expectation == .continue, isLast: isLast)
        )
    }

    private func error(_ head: HTTPRequestHead, _ fields: Fields, _ expectation: Expectation) -> ProtocolError? {
        if !matches(head.uri) { return .notFound }
        if head.method != .POST { return .methodNotAllowed }
        if fields.isEncoded { return .unsupportedEncoding }
        return expectation == .unknown ? .unsupportedExpectation : nil
    }

    /// True for exactly the path, with any query. A proxy may send the absolute form (RFC 9112 §3.2.2).
    private func matches(_ target: String) -> Bool {
        var path = target.utf8[...]
        if path.first != UInt8(ascii: "/"), let scheme = path.firstIndex(of: UInt8(ascii: ":")),
            path[scheme...].starts(with: "://".utf8)
        {
            let authority = path[scheme...].dropFirst(3)
            path = authority.drop { $0 != UInt8(ascii: "/") && $0 != UInt8(ascii: "?") }
        }
        if let query = path.firstIndex(of: UInt8(ascii: "?")) {
            path = path[..<query]
        }
        return path.elementsEqual(self.path.utf8)
    }
}

extension RequestInspection {
    fileprivate enum Expectation {
        case none
        case `continue`
        case unknown
    }

    /// The header fields that determine the framing and the decision.
    fileprivate struct Fields {
        var contentLength: Int?
        var isChunked = false
        var isEncoded = false
        var upgrades = false
        var expectation = Expectation.none
        var hosts = 0

        /// `nil` if a field of the framing is repeated or malformed.
        init?(_ headers: HTTPHeaders) {
            for (name, value) in headers {
                // Comparing lengths first skips most other fields.
                switch name.utf8.count {
                case 4 where name.isField("host"):
                    hosts += 1
                case 6 where name.isField("expect"):
                    expectation = value.isValue("100-continue") ? .continue : .unknown
                case 7 where name.isField("upgrade"):
                    upgrades = true
                case 14 where name.isField("content-length"):
                    guard contentLength == nil, let length = Self.length(value) else { return nil }
                    contentLength = length
                case 16 where name.isField("content-encoding"):
                    isEncoded = isEncoded || !value.isValue("identity")
                case 17 where name.isField("transfer-encoding"):
                    guard !isChunked, value.isValue("chunked") else { return nil }
                    isChunked = true
                default:
                    break
                }
            }
        }

        /// RFC 9112 §3.2 and §6.1: one Host (HTTP/1.0 may do without), one length, no chunks before HTTP/1.1.
        func isFramed(in version: HTTPVersion) -> Bool {
            if isChunked, contentLength != nil || version.minor == 0 { return false }
            return hosts == 1 || hosts == 0 && version.minor == 0
        }

        private static func length(_ text: String) -> Int? {
            let digits = text.utf8.trimmed(isOptionalWhitespace)
            guard !digits.isEmpty, digits.allSatisfy({ (0x30...0x39).contains($0) }) else { return nil }
            return Int(Substring(digits))
        }
    }
}

extension String {
    /// Compares a field's value with lower-case ASCII, ignoring case and surrounding white space (RFC 9110 §5.5).
    fileprivate func isValue(_ lowercase: String) -> Bool {
        if isField(lowercase) { return true }
        let value = utf8.trimmed(isOptionalWhitespace)
        return value.count < utf8.count && String(Substring(value)).isField(lowercase)
    }

    /// Compares with lower-case ASCII, ignoring case.
    fileprivate func isField(_ lowercase: String) -> Bool {
        let (bytes, wanted) = (utf8.span, lowercase.utf8.span)
        guard bytes.count == wanted.count else { return false }
        for index in bytes.indices {
            let byte = bytes[index]
            let folded = (0x41...0x5A).contains(byte) ? byte | 0x20 : byte
            guard folded == wanted[index] else { return false }
        }
        return true
    }
}

private func isOptionalWhitespace(_ byte: UInt8) -> Bool {
    byte == UInt8(ascii: " ") || byte == UInt8(ascii: "\t")
}
