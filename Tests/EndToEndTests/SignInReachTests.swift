import AppleSimulator
import JOSE
import TestSupport
import Testing

@Suite("Addresses in a request to sign in", .timeLimit(.minutes(10)))
struct SignInReachTests {
    @Test("siwad connects to none of them: neither of the request's members nor of the header and claims of its token.")
    func noRequest() async throws {
        try await CountingListener.with { listener, port in
            try await SigningFixture.with { fixture in
                _ = try await fixture.ready("a")
                let http = "http://127.0.0.1:\(port)/x"
                let https = "https://127.0.0.1:\(port)/x"
                let apple = fixture.daemons.apple
                let jwk = try JSONWebKey(keyID: "own", publicKey: SimulatedApple.generate().key.publicKey).json
                let place =
                    "\"jku\":\"\(http)\",\"x5u\":\"\(https)\",\"x5c\":[\"\(http)\"],\"jwk\":\(jwk)"
                let genuine = try await fixture.device()
                let payload = genuine.token.split(separator: ".").map(String.init)[1]
                let claims = String(decoding: try Base64URL.decode(payload), as: UTF8.self)
                let members =
                    ",\"redirect_uri\":\"\(https)\",\"jku\":\"\(http)\",\"user\":{\"name\":{\"firstName\":\"\(http)\"}},"
                    + "\"device\":{\"label\":\"\(https)\"}}"
                func request(_ kid: String, _ iss: String) throws -> String {
                    let header = "{\"alg\":\"RS256\",\"kid\":\"\(kid)\",\(place)}"
                    let claims = claims.replacing(SimulatedApple.appleIssuer, with: iss)
                    let token = try apple.token(claims: claims, header: header)
                    let device = SigningFixture.Device(token: token, code: genuine.code, nonce: genuine.nonce)
                    return device.request(session: "s1").dropLast() + members
                }
                for (kid, iss, reason) in [
                    (apple.keyID, http, "wrong-issuer"), (http, SimulatedApple.appleIssuer, "unknown-key"),
                    (https, https, "unknown-key"),
                ] {
                    let answer = try await fixture.post(request(kid, iss), to: "a")
                    #expect(answer.reason == reason, "\(answer.body)")
                }
                // Apple is asked, at its own address: the code belongs to another redirect URI than the listener's.
                let answer = try await fixture.post(request(apple.keyID, SimulatedApple.appleIssuer), to: "a")
                #expect(answer.status == 200 && answer.member("refresh_token")?.string == "refused", "\(answer.body)")
                #expect(try await fixture.tokenRequests() == 1)
                #expect(listener.connections == 0)
            }
            // The listener does count connections.
            _ = try? await Web.get("http://127.0.0.1:\(port)/")
            try await eventually("a connection to be counted") { listener.connections > 0 }
        }
    }
}
