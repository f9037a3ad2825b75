import AppleTokens
import JOSE
import Listening
import NIOSSL
import SignIn
import Telemetry
import TestSupport
import Testing

@testable import WebServer

@Suite("The application endpoint", .timeLimit(.minutes(5)))
struct ApplicationServerTests {
    private static let bearer = "Authorization: Bearer \(ApplicationFixture.token)\r\n"

    @Test("A person is signed in, gets a nonce, and the session is read and ended, on one connection.")
    func operations() async throws {
        try await ApplicationFixture.with { fixture in
            let responses = try await fixture.ask(
                request("POST /v1/nonces", #"{"client_id":"com.example.app"}"#),
                request("POST /v1/sign-in", signInBody),
                request("GET /v1/sessions/a3f1c5d2"),
                request("DELETE /v1/sessions/a3f1c5d2")
            )
            #expect(responses.map(\.status) == [200, 200, 200, 204])
            #expect(
                responses[0].body
                    == #"{"nonce":"8sIboQ4mZ1x7","sha256":"\#(String(repeating: "0", count: 64))","expires_in":600}"#
            )
            #expect(responses[1].body == StubService.answer.json)
            #expect(responses[2].body == #"{"live":true,"ended_at":null,"end_reason":null}"#)
            #expect(responses[3].body == "" && responses[3].fields["content-type"] == nil)
            #expect(fixture.service.calls.map(\.operation) == ["nonce", "sign-in", "session", "end"])
            for response in responses {
                #expect(response.fields["cache-control"] == "no-store")
                #expect(response.fields["date"]?.hasSuffix(" GMT") == true)
                #expect(response.fields.keys.filter { $0.hasPrefix("access-control-") } == [])
            }
            for response in responses.dropLast() { #expect(response.fields["content-type"] == "application/json") }
        }
    }

    @Test("Only the callers of the configuration are served, and the service learns who called.")
    func callers() async throws {
        try await ApplicationFixture.with(callers: try ApplicationFixture.callers()) { fixture in
            let refused = [
                "", "Authorization: Bearer\r\n", "Authorization: Bearer \r\n", "Authorization: Bearer wrong\r\n",
                "Authorization: Bearer \(ApplicationFixture.token.dropLast())\r\n",
                "Authorization: Bearer \(ApplicationFixture.token)x\r\n",
                "Authorization: Basic \(ApplicationFixture.token)\r\n",
                "Authorization: \(ApplicationFixture.token)\r\n",
                "Authorization: Bearer wrong\r\n\(Self.bearer)", "Cookie: token=\(ApplicationFixture.token)\r\n",
            ]
            for fields in refused {
                for line in ["POST /v1/sign-in", "POST /v1/nonces"] {
                    let response = try await fixture.one(request(line, signInBody, fields: fields))
                    #expect(response.status == 401 && response.reason == "unauthenticated", "\(fields)")
                    #expect(response.fields["www-authenticate"] == "Bearer")
                    #expect(!response.body.contains("wrong"))
                }
            }
            for line in [
                "GET /v1/openapi.json", "GET /v1/sessions/a", "DELETE /v1/sessions/a", "GET /none", "PUT /v1/sign-in",
            ] {
                #expect(try await fixture.one(request(line)).status == 401, "\(line)")
            }
            #expect(fixture.service.calls == [])
            let other = Self.bearer.replacing("Bearer", with: "bEARER")
            let responses = try await fixture.ask(
                request("POST /v1/sign-in", signInBody, fields: Self.bearer),
                request("GET /v1/sessions/a", fields: other)
            )
            #expect(responses.map(\.status) == [200, 200])
            let shop = Caller(name: "shop", clients: [ClientID("com.example.app")])
            #expect(fixture.service.calls.map(\.caller) == [shop, shop])
        }
    }

    @Test(
        "A web page that reaches the endpoint has no effect: neither with a form, nor as another site, nor by asking first."
    )
    func webPages() async throws {
        try await ApplicationFixture.with { fixture in
            let form = signInBody.utf8.count
            let attempts: [(String, Int, String)] = [
                (
                    request("POST /v1/sign-in", signInBody, fields: "Origin: https://evil.example\r\n"), 403,
                    "client-not-allowed"
                ),
                (request("POST /v1/sign-in", signInBody, fields: "Origin: null\r\n"), 403, "client-not-allowed"),
                (request("DELETE /v1/sessions/a", fields: "Origin: http://siwad\r\n"), 403, "client-not-allowed"),
                (
                    "POST /v1/sign-in HTTP/1.1\r\nHost: a\r\nContent-Type: text/plain\r\nContent-Length: \(form)\r\n\r\n\(signInBody)",
                    415, "unsupported-media-type"
                ),
                (
                    "POST /v1/sign-in HTTP/1.1\r\nHost: a\r\nContent-Length: \(form)\r\n\r\n\(signInBody)", 415,
                    "unsupported-media-type"
                ),
                (
                    request("OPTIONS /v1/sign-in", fields: "Access-Control-Request-Method: POST\r\n"), 405,
                    "method-not-allowed"
                ),
                (
                    request(
                        "OPTIONS /v1/sign-in",
                        fields: "Origin: https://evil.example\r\nAccess-Control-Request-Method: POST\r\n"
                    ),
                    403, "client-not-allowed"
                ),
            ]
            for (text, status, reason) in attempts {
                let response = try await fixture.one(text)
                #expect(response.status == status && response.reason == reason, "\(text)")
                #expect(response.fields.keys.filter { $0.hasPrefix("access-control-") } == [])
            }
            #expect(fixture.service.calls == [])
        }
        // A page whose name was bound to this address again has the right origin, but no token.
        try await ApplicationFixture.with(callers: try ApplicationFixture.callers()) { fixture in
            let response = try await fixture.one(request("POST /v1/sign-in", signInBody))
            #expect(response.status == 401)
            #expect(fixture.service.calls == [])
        }
    }

    @Test(
        "Unknown paths are 404, other methods are 405 with the allowed ones, and HEAD has the header fields of GET."
    )
    func pathsAndMethods() async throws {
        try await ApplicationFixture.with { fixture in
            for path in [
                "/", "/v1", "/v1/", "/v1/sign-in/", "/v1/sessions", "/v1/sessions/", "/v1/sessions/a/b", "/V1/nonces",
                "//v1/nonces", "/livez",
            ] {
                let response = try await fixture.one(request("GET \(path)"))
                #expect(response.status == 404 && response.reason == "not-found", "\(path)")
            }
            let methods = [
                ("GET /v1/nonces", "POST"), ("PUT /v1/sign-in", "POST"), ("DELETE /v1/openapi.json", "GET, HEAD"),
                ("POST /v1/sessions/a", "GET, HEAD, DELETE"), ("OPTIONS /v1/sessions/a", "GET, HEAD, DELETE"),
                ("TRACE /v1/sign-in", "POST"), ("HEAD /v1/sign-in", "POST"),
            ]
            for (line, allowed) in methods {
                let response = try await fixture.one(request(line))
                #expect(response.status == 405 && response.fields["allow"] == allowed, "\(line)")
                #expect(line.hasPrefix("HEAD") || response.reason == "method-not-allowed")
            }
            let responses = try await fixture.ask(
                request("GET /v1/openapi.json?x"),
                request("HEAD /v1/openapi.json"),
                request("HEAD /v1/sessions/a"),
                request("GET /v1/sessions/a")
            )
            #expect(responses.map(\.status) == [200, 200, 200, 200])
            for (full, head) in [(0, 1), (3, 2)] {
                #expect(responses[head].body == "")
                for name in ["content-type", "content-length", "cache-control"] {
                    #expect(responses[head].fields[name] == responses[full].fields[name])
                }
            }
        }
    }

    @Test("The id of a session in a path is percent-decoded, and has 1 to 256 bytes.")
    func sessionIDs() async throws {
        try await ApplicationFixture.with { fixture in
            let long = String(repeating: "x", count: 256)
            let ids = [
                ("a%2Fb", "a/b"), ("a+b", "a+b"), ("%C3%A9", "é"), ("a%20b", "a b"), ("%25", "%"), ("..", ".."),
                ("%2e%2e", ".."),
                ("a%3Fb?c", "a?b"), ("'%22%3B--", "'\";--"), (long, long),
            ]
            for (path, id) in ids {
                #expect(try await fixture.one(request("GET /v1/sessions/\(path)")).status == 200, "\(path)")
                #expect(fixture.service.calls.last?.subject == id)
            }
            let count = fixture.service.calls.count
            for path in ["%", "%4", "%zz", "%00", "a%00", "%ff", "%C3", "x" + long] {
                let response = try await fixture.one(request("GET /v1/sessions/\(path)"))
                #expect(response.status == 400 && response.reason == "malformed-request", "\(path)")
            }
            #expect(fixture.service.calls.count == count)
        }
    }

    @Test(
        "Each problem of the service becomes a response with its status, its body and its header fields.",
        arguments: Problem.Reason.allCases
    )
    func problems(_ reason: Problem.Reason) async throws {
        let problem = Problem(reason, "Because \"of\" this.", retryAfter: reason == .inProgress ? 3 : nil)
        let service = StubService { () throws(Problem) in throw problem }
        try await ApplicationFixture.with(service) { fixture in
            let responses = try await fixture.ask(
                request("POST /v1/sign-in", signInBody),
                request("POST /v1/nonces", signInBody),
                request("GET /v1/sessions/a"),
                request("DELETE /v1/sessions/a")
            )
            for response in responses {
                #expect(response.status == reason.status)
                #expect(response.body == problem.json)
                #expect(response.fields["content-type"] == "application/problem+json")
                #expect(response.fields["cache-control"] == "no-store")
                #expect(response.fields["retry-after"] == problem.retryAfter.map { "\($0)" })
                let body = try JSONValue(parsing: Array(response.body.utf8))
                #expect(body["type"]?.string == "urn:siwad:problem:\(reason.rawValue)")
                #expect(body["status"]?.integer == Int64(reason.status))
                #expect(body["action"]?.string == reason.action.rawValue)
            }
        }
    }

    @Test("Bodies that break a rule are refused with the name of the member, and never reach the service.")
    func bodies() async throws {
        try await ApplicationFixture.with { fixture in
            let bodies = [
                "", "x", "[]", "null", #"{"client_id":1}"#, #"{"client_id":"a","client_id":"a"}"#,
                "\u{FEFF}\(signInBody)",
                #"{"client_id":"com.example.app"}"#,
            ]
            for body in bodies {
                let response = try await fixture.one(request("POST /v1/sign-in", body))
                #expect(response.status == 400 && response.reason == "malformed-request", "\(body)")
            }
            let key = try await fixture.one(
                request("POST /v1/sign-in", signInBody, fields: "Idempotency-Key: short\r\n")
            )
            #expect(key.status == 400 && key.body.contains("Idempotency-Key"))
            #expect(fixture.service.calls == [])
            let types = ["Application/JSON", "application/json; charset=utf-8", " application/json "]
            for type in types {
                let fields = "Content-Type: \(type)\r\nContent-Length: \(signInBody.utf8.count)\r\n"
                let text = "POST /v1/sign-in HTTP/1.1\r\nHost: a\r\n\(fields)\r\n\(signInBody)"
                #expect(try await fixture.one(text).status == 200, "\(type)")
            }
            let encoded = try await fixture.one(
                request("POST /v1/sign-in", signInBody, fields: "Content-Encoding: gzip\r\n")
            )
            #expect(encoded.status == 415)
        }
    }

    @Test("Callers are served over TLS, with a certificate that is read again when it changes.")
    func tls() async throws {
        let directory = try TemporaryDirectory()
        try await OpenSSL.makeCertificate("ec", in: directory)
        let certificates = try ServerCertificates(
            certificateFile: directory.file("certificate.pem"),
            keyFile: directory.file("key.pem"),
            settings: .init(certificate: "SIWAD_APPLICATION_TLS_CERTIFICATE", key: "SIWAD_APPLICATION_TLS_KEY")
        )
        let first = certificates.expiry
        let expiry = Gauge(.nan)
        try await ApplicationFixture.with(certificates: certificates, certificateExpiry: expiry) { fixture in
            #expect(expiry.value == Double(first))
            var configuration = TLSConfiguration.makeClientConfiguration()
            configuration.certificateVerification = .none
            let context = try NIOSSLContext(configuration: configuration)
            let client = try await fixture.connect(tls: context)
            try await client.send(request("POST /v1/sign-in", signInBody))
            #expect(try await client.response().status == 200)
            try directory.write(Array(LocalhostCertificate.key.utf8), to: "key.pem")
            try directory.write(Array(LocalhostCertificate.pem.utf8), to: "certificate.pem")
            while expiry.value == Double(first) { try await Task.sleep(for: .milliseconds(2)) }
            #expect(expiry.value == Double(certificates.expiry))
            let newcomer = try await fixture.connect(tls: context)
            try await newcomer.send(request("GET /v1/sessions/a"))
            #expect(try await newcomer.response().status == 200)
            try await client.send(request("GET /v1/sessions/a"))
            #expect(try await client.response().status == 200)
            let plain = try await fixture.connect()
            plain.push(request("GET /v1/sessions/a"))
            #expect(!(await plain.rest()).contains("200"))
        }
        let error = try #require(throws: ServerError.self) {
            try ServerCertificates(
                certificateFile: "/none",
                keyFile: "/none",
                settings: .init(certificate: "SIWAD_APPLICATION_TLS_CERTIFICATE")
            )
        }
        #expect(error.message.contains("SIWAD_APPLICATION_TLS_CERTIFICATE"))
    }
}
