import AppleSimulator
import Testing

@Suite("What isn't Apple's notification", .timeLimit(.minutes(10)))
struct RefusalTests {
    /// A request, and how it must be answered.
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

    private func requests(_ scene: Scene) throws -> [Refused] {
        let apple = scene.apple
        let stranger = try SimulatedApple.generate()
        let other = try SimulatedApple(key: apple.key, issuer: "https://example.com")
        let token = try apple.token(for: scene.event())
        let claims = scene.event().claims(issuer: apple.issuer)
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
                body(apple.identityToken(sub: "person", app: "com.example.one", issuedAt: scene.event().issuedAt))
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
            Refused("wrong-issuer", 401, body(other.token(for: scene.event()))),
            Refused("body-too-large", 413, String(repeating: "a", count: 65_537)),
        ]
    }

    /// The token with another signature of the same length.
    private func forged(_ token: String) -> String {
        var parts = token.split(separator: ".").map(String.init)
        parts[2] = String(parts[2].prefix(100)) + String(parts[2].dropFirst(100).reversed().dropFirst()) + "A"
        return parts.joined(separator: ".")
    }

    @Test("is refused with a problem that names the mistake, leaves no trace, and is counted.")
    func refused() async throws {
        try await Scene.withDaemon { scene, daemon, addresses in
            let requests = try requests(scene)
            for request in requests {
                let answer = try await Web.post(request.body, to: addresses.notifications)
                #expect(answer.status == request.status, "\(request.reason): \(answer.body)")
                #expect(answer.reason == request.reason, "\(request.body.prefix(40)): \(answer.body)")
            }
            #expect(try await scene.isUntouched())
            let metrics = try await Web.get(addresses.operations + "/metrics").body
            for (reason, requests) in Dictionary(grouping: requests, by: \.reason) {
                #expect(metrics.contains("siwad_rejections_total{reason=\"\(reason)\"} \(requests.count)\n"))
            }
            // Neither tokens nor what is in them is logged.
            #expect(!daemon.log.contains { $0.contains("person") || $0.contains("eyJ") })
        }
    }

    @Test("An answer to a refused request says no more than its kind: two of a kind are the same to the byte.")
    func silent() async throws {
        try await Scene.withDaemon { scene, _, addresses in
            let stranger = try SimulatedApple.generate()
            let bodies = try ["consent-revoked", "nonsense"].map { type in
                let claims = scene.event(type, sub: "person of \(type)").claims(issuer: scene.apple.issuer)
                return SimulatedApple.body(token: try stranger.token(claims: claims, header: scene.apple.header))
            }
            var answers: [String] = []
            for body in bodies { answers.append(try await Web.post(body, to: addresses.notifications).body) }
            #expect(Set(answers).count == 1)
        }
    }

    @Test("Another method is answered 405 with Allow, another path 404; neither leaves a trace.")
    func elsewhere() async throws {
        try await Scene.withDaemon { scene, _, addresses in
            for method in ["GET", "PUT", "DELETE"] {
                let answer = try await Web.request(method, addresses.notifications)
                #expect(answer.status == 405)
                #expect(answer.fields["allow"] == "POST")
            }
            let body = try scene.body(scene.event())
            for suffix in ["/", "/x", "x"] {
                #expect(try await Web.post(body, to: addresses.notifications + suffix).status == 404)
            }
            #expect(try await scene.isUntouched())
            #expect(try await Web.post(body, to: addresses.notifications + "?from=apple").status == 200)
        }
    }
}
