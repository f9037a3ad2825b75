import AppleSimulator
import Testing

@Suite("Requests that are not a notification of Apple's", .timeLimit(.minutes(10)))
struct RefusalTests {
    /// A request and its expected response.
    private struct Refused {
        let reason: String
        let status: Int
        let body: String

        init(_ reason: String, _ status: Int, _ body: String) {
            self.reason = reason
            self.status = status
            self.body = body
        }
    }

    private func requests(_ fixture: DaemonFixture) throws -> [Refused] {
        let apple = fixture.apple
        let stranger = try SimulatedApple.generate()
        let other = try SimulatedApple(key: apple.key, issuer: "https://example.com")
        let token = try apple.token(for: fixture.event())
        let claims = fixture.event().claims(issuer: apple.issuer)
        func body(_ token: String) -> String { SimulatedApple.body(token: token) }
        return try [
            Refused("malformed-body", 400, ""),
            Refused("malformed-body", 400, "{\"payload\":1}"),
            Refused("malformed-body", 400, "{\"payload\":\"a\",\"payload\":\"b\"}"),
            Refused("malformed-body", 400, "<xml/>"),
            Refused("malformed-token", 400, body("a.b.c")),
            Refused("malformed-token", 400, body(token + "=")),
            Refused("malformed-token", 400, body(token.split(separator: ".").prefix(2).joined(separator: "."))),
            Refused(
                "unsupported-algorithm",
                400,
                body(apple.token(claims: claims, header: "{\"kid\":\"\(apple.keyID)\",\"alg\":\"none\"}"))
            ),
            Refused(
                "unsupported-algorithm",
                400,
                body(apple.token(claims: claims, header: "{\"kid\":\"\(apple.keyID)\",\"alg\":\"HS256\"}"))
            ),
            Refused(
                "not-a-notification",
                400,
                body(apple.identityToken(sub: "person", app: "com.example.one", issuedAt: fixture.event().issuedAt))
            ),
            Refused("app-store-notification", 400, "{\"signedPayload\":\"\(token)\"}"),
            Refused(
                "app-store-notification",
                400,
                body(apple.token(claims: claims, header: "{\"alg\":\"ES256\",\"x5c\":[\"MIIB\"]}"))
            ),
            Refused("bad-signature", 401, body(forged(token))),
            Refused("bad-signature", 401, body(stranger.token(claims: claims, header: apple.header))),
            Refused("unknown-key", 401, body(stranger.token(claims: claims))),
            Refused("wrong-issuer", 401, body(other.token(for: fixture.event()))),
            Refused("body-too-large", 413, String(repeating: "a", count: 65_537)),
        ]
    }

    /// The token with another signature of the same length.
    private func forged(_ token: String) -> String {
        var parts = token.split(separator: ".").map(String.init)
        parts[2] = String(parts[2].prefix(100)) + String(parts[2].dropFirst(100).reversed().dropFirst()) + "A"
        return parts.joined(separator: ".")
    }

    @Test("Each is refused with a problem that names the reason, stores nothing, and is counted.")
    func refused() async throws {
        try await DaemonFixture.withDaemon { fixture, daemon, addresses in
            let requests = try requests(fixture)
            for request in requests {
                let response = try await Web.post(request.body, to: addresses.notifications)
                #expect(response.status == request.status, "\(request.reason): \(response.body)")
                #expect(response.reason == request.reason, "\(request.body.prefix(40)): \(response.body)")
            }
            #expect(try await fixture.isUntouched())
            let metrics = try await Web.get(addresses.operations + "/metrics").body
            for (reason, requests) in Dictionary(grouping: requests, by: \.reason) {
                #expect(metrics.contains("siwad_rejections_total{reason=\"\(reason)\"} \(requests.count)\n"))
            }
            // The log contains no token and no claim.
            #expect(!daemon.log.contains { $0.contains("person") || $0.contains("eyJ") })
        }
    }

    @Test("Refusals for the same reason are identical to the byte, so they reveal nothing else.")
    func silent() async throws {
        try await DaemonFixture.withDaemon { fixture, _, addresses in
            let stranger = try SimulatedApple.generate()
            let bodies = try ["consent-revoked", "nonsense"].map { type in
                let claims = fixture.event(type, sub: "person of \(type)").claims(issuer: fixture.apple.issuer)
                return SimulatedApple.body(token: try stranger.token(claims: claims, header: fixture.apple.header))
            }
            var answers: [String] = []
            for body in bodies { answers.append(try await Web.post(body, to: addresses.notifications).body) }
            #expect(Set(answers).count == 1)
        }
    }

    @Test("Another method is answered 405 with Allow, another path 404; neither stores anything.")
    func elsewhere() async throws {
        try await DaemonFixture.withDaemon { fixture, _, addresses in
            for method in ["GET", "PUT", "DELETE"] {
                let response = try await Web.request(method, addresses.notifications)
                #expect(response.status == 405)
                #expect(response.fields["allow"] == "POST")
            }
            let body = try fixture.body(fixture.event())
            for suffix in ["/", "/x", "x"] {
                #expect(try await Web.post(body, to: addresses.notifications + suffix).status == 404)
            }
            #expect(try await fixture.isUntouched())
            #expect(try await Web.post(body, to: addresses.notifications + "?from=apple").status == 200)
        }
    }
}
