import AppleTokens
import AppleSimulator
import JOSE
import NIOCore
import NIOPosix
import Synchronization
import Testing

@Suite("A token that says where its key is", .timeLimit(.minutes(10)))
struct ReferencedKeyTests {
    /// A TCP listener that counts who comes.
    private final class Listener: Sendable {
        let connections = Mutex(0)

        static func with<R>(_ body: (Listener, Int) async throws -> R) async throws -> R {
            let listener = Listener()
            let channel = try await ServerBootstrap(group: Web.eventLoops)
                .childChannelInitializer { channel in
                    listener.connections.withLock { $0 += 1 }
                    return channel.close()
                }
                .bind(host: "127.0.0.1", port: 0).get()
            do {
                let result = try await body(listener, channel.localAddress?.port ?? 0)
                try await channel.close()
                return result
            } catch {
                try await channel.close()
                throw error
            }
        }
    }

    @Test("or brings it along is refused like any forgery, and nobody is asked: no connection is made for it.")
    func noRequest() async throws {
        try await Listener.with { listener, port in
            try await Scene.withDaemon(["SIWAD_KEYS_REFRESH_FLOOR": "1s"]) { scene, _, addresses in
                let stranger = try SimulatedApple.generate()
                let jwk = try stranger.key.publicJWK(keyID: "own").json
                let http = "http://127.0.0.1:\(port)/keys.json"
                let places = [
                    "\"jku\":\"\(http)\"", "\"jku\":\"https://127.0.0.1:\(port)/keys.json\"",
                    "\"x5u\":\"\(http)\"", "\"jwk\":\(jwk)", "\"x5c\":[\"MIIB\"]", "\"x5t\":\"\(http)\"",
                    "\"jku\":\"\(http)\",\"x5u\":\"\(http)\",\"jwk\":\(jwk)",
                ]
                let kids = [scene.apple.keyID, "own", http, "file:///etc/passwd", "//127.0.0.1:\(port)/x"]
                let claims = scene.event().claims(issuer: scene.apple.issuer)
                for place in places {
                    for kid in kids {
                        let header = "{\"alg\":\"RS256\",\"kid\":\"\(kid)\",\(place)}"
                        let token = try stranger.token(claims: claims, header: header)
                        let answer = try await Web.post(SimulatedApple.body(token: token), to: addresses.notifications)
                        let isKnown = kid == scene.apple.keyID
                        #expect(isKnown ? answer.status == 401 : [401, 503].contains(answer.status), "\(header)")
                        #expect(!isKnown || answer.reason == "bad-signature", "\(header)")
                    }
                }
                // Apple's endpoint itself was asked, so that a request would have had the time to be made.
                try await eventually("a fetch of Apple's key set") { scene.endpoint.fetches > 1 }
                #expect(listener.connections.withLock { $0 } == 0)
                #expect(try await scene.texts("SELECT jti FROM siwa.notifications").isEmpty)
                // With the listener named but Apple's signature it is Apple's.
                let genuine = try scene.apple.token(
                    claims: claims,
                    header: "{\"alg\":\"RS256\",\"kid\":\"\(scene.apple.keyID)\",\(places[6])}"
                )
                let answer = try await Web.post(SimulatedApple.body(token: genuine), to: addresses.notifications)
                #expect(answer.status == 200)
                #expect(listener.connections.withLock { $0 } == 0)
            }
        }
        // The listener does count.
        try await Listener.with { listener, port in
            _ = try? await Web.get("http://127.0.0.1:\(port)/")
            try await eventually("a connection to be counted") { listener.connections.withLock { $0 } > 0 }
        }
    }
}
