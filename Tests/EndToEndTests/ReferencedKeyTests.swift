import AppleTokens
import AppleSimulator
import JOSE
import Testing

@Suite("A token that references or contains its key", .timeLimit(.minutes(10)))
struct ReferencedKeyTests {
    @Test("It is refused like any forgery, and siwad makes no connection to the referenced address.")
    func noRequest() async throws {
        try await CountingListener.with { listener, port in
            try await DaemonFixture.withDaemon(["SIWAD_KEYS_REFRESH_FLOOR": "1s"]) { fixture, _, addresses in
                let stranger = try SimulatedApple.generate()
                let jwk = try JSONWebKey(keyID: "own", publicKey: stranger.key.publicKey).json
                let http = "http://127.0.0.1:\(port)/keys.json"
                let places = [
                    "\"jku\":\"\(http)\"", "\"jku\":\"https://127.0.0.1:\(port)/keys.json\"",
                    "\"x5u\":\"\(http)\"", "\"jwk\":\(jwk)", "\"x5c\":[\"MIIB\"]", "\"x5t\":\"\(http)\"",
                    "\"jku\":\"\(http)\",\"x5u\":\"\(http)\",\"jwk\":\(jwk)",
                ]
                let kids = [fixture.apple.keyID, "own", http, "file:///etc/passwd", "//127.0.0.1:\(port)/x"]
                let claims = fixture.event().claims(issuer: fixture.apple.issuer)
                for place in places {
                    for kid in kids {
                        let header = "{\"alg\":\"RS256\",\"kid\":\"\(kid)\",\(place)}"
                        let token = try stranger.token(claims: claims, header: header)
                        let response = try await Web.post(
                            SimulatedApple.body(token: token),
                            to: addresses.notifications
                        )
                        let isKnown = kid == fixture.apple.keyID
                        #expect(isKnown ? response.status == 401 : [401, 503].contains(response.status), "\(header)")
                        #expect(!isKnown || response.reason == "bad-signature", "\(header)")
                    }
                }
                // siwad has fetched Apple's key set since then, so it had time for another request.
                try await eventually("a fetch of Apple's key set") { fixture.endpoint.fetches > 1 }
                #expect(listener.connections == 0)
                #expect(try await fixture.texts("SELECT jti FROM siwa.notifications").isEmpty)
                // With Apple's signature the token is accepted, although it names the listener.
                let genuine = try fixture.apple.token(
                    claims: claims,
                    header: "{\"alg\":\"RS256\",\"kid\":\"\(fixture.apple.keyID)\",\(places[6])}"
                )
                let response = try await Web.post(SimulatedApple.body(token: genuine), to: addresses.notifications)
                #expect(response.status == 200)
                #expect(listener.connections == 0)
            }
        }
        // The listener does count connections.
        try await CountingListener.with { listener, port in
            _ = try? await Web.get("http://127.0.0.1:\(port)/")
            try await eventually("a connection to be counted") { listener.connections > 0 }
        }
    }
}
