import NIOHTTP1
import Testing

@testable import NotificationServer

@Suite("The inspection of a head")
struct RequestInspectionTests {
    private let inspection = RequestInspection(path: "/apple/notifications", bodyLimit: 100)

    private func judge(
        _ method: HTTPMethod = .POST,
        _ target: String = "/apple/notifications",
        version: HTTPVersion = .http1_1,
        fields: (String, String)...
    ) -> RequestInspection.Judgement {
        var headers: [(String, String)] = [("Host", "example.com")]
        headers += fields
        return inspection.judge(
            HTTPRequestHead(version: version, method: method, uri: target, headers: HTTPHeaders(headers))
        )
    }

    private func accepted(_ length: Int?, expects: Bool = false, isLast: Bool = false)
        -> RequestInspection.Judgement
    {
        .accepted(.init(contentLength: length, expectsContinue: expects, isLast: isLast))
    }

    @Test("A notification is accepted with the length of its body.")
    func accepts() {
        #expect(judge(fields: ("Content-Length", "100")) == accepted(100))
        #expect(judge(fields: ("content-LENGTH", "0")) == accepted(0))
        #expect(judge(fields: ("Transfer-Encoding", "Chunked")) == accepted(nil))
        #expect(judge() == accepted(0))
        #expect(judge(fields: ("Connection", "close")) == accepted(0, isLast: true))
        #expect(judge(fields: ("Upgrade", "h2c")) == accepted(0, isLast: true))
        #expect(judge(version: .http1_0) == accepted(0, isLast: true))
        #expect(judge(fields: ("Expect", "100-Continue")) == accepted(0, expects: true))
        #expect(judge(version: .http1_0, fields: ("Expect", "100-continue")) == accepted(0, isLast: true))
    }

    @Test(
        "The path is compared byte by byte, without its query.",
        arguments: [
            ("/apple/notifications", true), ("/apple/notifications?", true), ("/apple/notifications?a=/b", true),
            ("http://example.com/apple/notifications", true), ("https://example.com:1/apple/notifications?x", true),
            ("/apple/notifications/", false), ("/Apple/notifications", false), ("//apple/notifications", false),
            ("/apple/../apple/notifications", false), ("/apple/notification%73", false), ("/apple", false),
            ("*", false), ("http://example.com", false), ("http://example.com?/apple/notifications", false),
            ("", false), ("?", false), ("/apple/notifications#x", false), ("apple/notifications", false),
        ]
    )
    func paths(_ target: String, isFound: Bool) {
        #expect(judge(.POST, target) == (isFound ? accepted(0) : .refused(.notFound, isLast: false)))
    }

    @Test("A canonically equivalent path is not found.")
    func unicode() {
        let kelvin = RequestInspection(path: "/K", bodyLimit: 1)
        let head = HTTPRequestHead(version: .http1_1, method: .POST, uri: "/\u{212A}", headers: ["Host": "a"])
        #expect(kelvin.judge(head) == .refused(.notFound, isLast: false))
    }

    @Test("Every other method is refused.", arguments: [HTTPMethod.GET, .HEAD, .PUT, .OPTIONS, .RAW(value: "PURGE")])
    func methods(_ method: HTTPMethod) {
        #expect(judge(method) == .refused(.methodNotAllowed, isLast: false))
    }

    @Test("A framing that two parsers can read differently is refused.")
    func framing() {
        let broken = RequestInspection.Judgement.broken(.malformedRequest)
        #expect(judge(fields: ("Content-Length", "1"), ("Content-Length", "1")) == broken)
        #expect(judge(fields: ("Content-Length", "1"), ("Transfer-Encoding", "chunked")) == broken)
        #expect(judge(fields: ("Transfer-Encoding", "chunked"), ("Transfer-Encoding", "chunked")) == broken)
        for length in ["", " ", "+1", "-1", "1 1", "1\u{B}", "0x1", "1,1", "１", "99999999999999999999"] {
            #expect(judge(fields: ("Content-Length", length)) == broken, "\(length)")
        }
        for coding in [
            "gzip", "gzip, chunked", "chunked, identity", "identity", "", " ", "chunked;", "chunked\u{B}",
            "\"chunked\"",
        ] {
            #expect(judge(fields: ("Transfer-Encoding", coding)) == broken, "\(coding)")
        }
        #expect(judge(version: .http1_0, fields: ("Transfer-Encoding", "chunked")) == broken)
        #expect(judge(fields: ("Host", "other")) == broken)
        let bare = HTTPRequestHead(version: .http1_1, method: .POST, uri: "/apple/notifications", headers: [:])
        #expect(inspection.judge(bare) == broken)
        #expect(judge(version: HTTPVersion(major: 2, minor: 0)) == .broken(.unsupportedVersion))
        #expect(judge(version: HTTPVersion(major: 1, minor: 2)) == .broken(.unsupportedVersion))
    }

    @Test(
        "Spaces and tabs around a value are not part of it.",
        arguments: ["", " ", "\t", " \t "],
        ["", " ", "\t", " \t "]
    )
    func whitespace(before: String, after: String) {
        let around = { before + $0 + after }
        #expect(judge(fields: ("Content-Length", around("100"))) == accepted(100))
        #expect(judge(fields: ("Transfer-Encoding", around("Chunked"))) == accepted(nil))
        #expect(judge(fields: ("Content-Encoding", around("identity"))) == accepted(0))
        #expect(judge(fields: ("Expect", around("100-continue"))) == accepted(0, expects: true))
        #expect(judge(fields: ("Expect", around("100 -continue"))) == .broken(.unsupportedExpectation))
        let both = judge(fields: ("Content-Length", around("1")), ("Transfer-Encoding", around("chunked")))
        #expect(both == .broken(.malformedRequest))
        let gzip = judge(fields: ("Content-Encoding", around("gzip")))
        #expect(gzip == .refused(.unsupportedEncoding, isLast: false))
    }

    @Test("An unwanted body ends the connection if it is large or waits for 100 Continue.")
    func unwantedBodies() {
        #expect(judge(fields: ("Content-Length", "101")) == .tooLarge)
        #expect(judge(.POST, "/", fields: ("Content-Length", "100")) == .refused(.notFound, isLast: false))
        #expect(judge(.POST, "/", fields: ("Content-Length", "101")) == .broken(.notFound))
        #expect(judge(.POST, "/", fields: ("Expect", "100-continue")) == .broken(.notFound))
        #expect(judge(fields: ("Expect", "more")) == .broken(.unsupportedExpectation))
        #expect(judge(.CONNECT) == .broken(.methodNotAllowed))
        #expect(judge(fields: ("Content-Encoding", "gzip")) == .refused(.unsupportedEncoding, isLast: false))
        #expect(judge(fields: ("Content-Encoding", "identity")) == accepted(0))
        let twice = judge(fields: ("Content-Encoding", "gzip"), ("Content-Encoding", "identity"))
        #expect(twice == .refused(.unsupportedEncoding, isLast: false))
    }
}
