import AccountStore
import JOSE
import TestSupport
import Testing

@Suite("Settings of deliveries at SIGHUP", .timeLimit(.minutes(10)))
struct DeliveryReloadTests {
    private static let apps = "apps: AAAAAAAAAA/com.example.one\n"

    /// Runs a test with a daemon that reads a file, and a function that changes the file and waits until it is read again.
    private func withDaemon(
        _ settings: String,
        _ body: (DaemonFixture, DaemonProcess, (_ settings: String) async throws -> Void) async throws -> Void
    ) async throws {
        try await DaemonFixture.with { fixture in
            try await TemporaryDirectory.with { directory in
                let file = try directory.write("siwad.yaml", Self.apps + settings)
                let daemon = fixture.start(["SIWAD_APPS": ""], arguments: ["serve", "--config", file])
                _ = try await daemon.ready()
                func readings() -> Int {
                    daemon.log.count { $0.contains("configuration re-read") || $0.contains("was not re-read") }
                }
                try await body(fixture, daemon) { settings in
                    let before = readings()
                    _ = try directory.write("siwad.yaml", Self.apps + settings)
                    daemon.send("HUP")
                    try await eventually("the configuration to be read again") { readings() > before }
                }
            }
        }
    }

    @Test("Allowed addresses, authorities and sealing keys apply to the next attempt.")
    func applied() async throws {
        try await withDaemon("") { fixture, daemon, reload in
            try await WebhookReceiver.with(try DaemonFixture.secret) { receiver in
                func reports(_ text: String) -> Int { daemon.log.count { $0.contains(text) } }
                func reasons() async throws -> [String] {
                    try await fixture.texts("SELECT DISTINCT reason FROM siwa.delivery_attempts ORDER BY 1")
                }
                try await fixture.addEndpoint("shop", receiver.url) {
                    $0.retries = Array(repeating: .seconds(1), count: 50)
                }
                try await fixture.revoke(1)
                try await eventually("the missing key") { reports("SIWAD_SEALING_KEYS is not set") == 1 }
                #expect(try await reasons() == [])

                let key = "sealing_keys: '\(try DaemonFixture.delivering()["SIWAD_SEALING_KEYS"] ?? "")'\n"
                try await reload(key)
                try await eventually("a blocked attempt") { try await reasons() == ["blocked"] }

                try await reload(key + "delivery_allow: 127.0.0.0/8\ndelivery_ca: /nowhere/ca.pem\n")
                #expect(reports("/nowhere/ca.pem is not a readable PEM file") == 1)
                #expect(reports("the old one stays in force") == 1)
                #expect(receiver.connections == 0)

                try await reload(key + "delivery_allow: 127.0.0.0/8\n")
                try await eventually("the delivery") { try await fixture.deliveries() == ["shop delivered 1"] }

                let other = "sealing_keys: '\(try SealingKeys.newLine(name: "test"))'\n"
                try await reload(other + "delivery_allow: 127.0.0.0/8\n")
                try await eventually("the wrong key") { reports("nothing can be sent to an endpoint") == 2 }
                let metrics = try await Web.get(try await daemon.ready().operations + "/metrics").body
                #expect(metrics.contains("siwad_endpoint_state{endpoint=\"shop\",state=\"open\"} 1"))
                try await fixture.revoke(1)
                try await reload(key + "delivery_allow: 127.0.0.0/8\n")
                try await eventually("the next delivery") { try await fixture.deliveries() == ["shop delivered 2"] }
                #expect(receiver.messages.count == 2)
            }
        }
    }

    /// Runs a test with a receiver that speaks TLS, the settings of a daemon that delivers to loopback addresses, and the path
    /// of a file with the receiver's authority.
    private func withEncryptedReceiver(
        _ body: (_ receiver: WebhookReceiver, _ settings: String, _ authorities: String) async throws -> Void
    ) async throws {
        let key = try DaemonFixture.delivering()["SIWAD_SEALING_KEYS"] ?? ""
        let settings = "sealing_keys: '\(key)'\ndelivery_allow: 127.0.0.0/8\n"
        try await TemporaryDirectory.with { directory in
            let authorities = try directory.write("authorities.pem", LocalhostCertificate.pem)
            try await WebhookReceiver.with(try DaemonFixture.secret, isEncrypted: true) { receiver in
                try await body(receiver, settings, authorities)
            }
        }
    }

    @Test("A certificate of an unknown authority is refused until delivery_ca names the authority, also by SIGHUP.")
    func authorities() async throws {
        try await withEncryptedReceiver { receiver, settings, authorities in
            try await withDaemon(settings) { fixture, _, reload in
                try await fixture.addEndpoint("shop", receiver.url) {
                    $0.retries = Array(repeating: .seconds(1), count: 50)
                }
                try await fixture.revoke(1)
                try await eventually("a refused certificate") {
                    try await fixture.texts("SELECT DISTINCT reason FROM siwa.delivery_attempts") == ["tls"]
                }
                #expect(receiver.messages.isEmpty)
                try await reload(settings + "delivery_ca: \(authorities)\n")
                try await fixture.untilDelivered("shop delivered 1")
                #expect(receiver.messages.map { $0.id != nil } == [true])

                func test(_ settings: [String: String]) async throws -> CommandRun {
                    let environment = fixture.environment(try DaemonFixture.delivering(settings))
                    return try await siwad(["endpoints", "test", "shop"], environment: environment)
                }
                let trusted = try await test(["SIWAD_DELIVERY_CA": authorities])
                #expect(trusted.status == 0 && trusted.output.contains("TLS 1.3"), "\(trusted)")
                let untrusted = try await test([:])
                #expect(untrusted.status == 69 && untrusted.errors.contains("SIWAD_DELIVERY_CA"), "\(untrusted)")
            }
        }
    }

    @Test("With delivery_proxy, changes reach an endpoint through a tunnel of the proxy, also after SIGHUP.")
    func proxy() async throws {
        try await withEncryptedReceiver { receiver, settings, authorities in
            try await TunnelProxy.with(to: receiver.port, on: Web.eventLoops) { proxy in
                let proxied = settings + "delivery_ca: \(authorities)\ndelivery_proxy: \(proxy.url)\n"
                try await withDaemon(proxied) { fixture, _, reload in
                    // Only the proxy leads from this port to the receiver.
                    try await fixture.addEndpoint("shop", "https://localhost/hooks")
                    try await fixture.revoke(1)
                    try await fixture.untilDelivered("shop delivered 1")
                    #expect(proxy.requests == ["CONNECT localhost:443 HTTP/1.1"])
                    try await reload(proxied)
                    var count = 1
                    // Until the connections are replaced, the old one is used.
                    try await eventually("a tunnel opened after SIGHUP") {
                        count += 1
                        try await fixture.revoke(1)
                        try await fixture.untilDelivered("shop delivered \(count)")
                        return proxy.requests.count > 1
                    }
                    #expect(Set(proxy.requests) == ["CONNECT localhost:443 HTTP/1.1"])
                    #expect(receiver.messages.count == count && receiver.messages.allSatisfy { $0.id != nil })

                    let throughProxy = ["SIWAD_DELIVERY_CA": authorities, "SIWAD_DELIVERY_PROXY": proxy.url]
                    let environment = fixture.environment(try DaemonFixture.delivering(throughProxy))
                    let test = try await siwad(["endpoints", "test", "shop"], environment: environment)
                    #expect(test.status == 0 && test.output.contains("chosen by the proxy"), "\(test)")
                }
            }
        }
    }

    @Test("Settings that only a restart applies are named, and what runs goes on with the old ones.")
    func ignored() async throws {
        let key = "sealing_keys: '\(try DaemonFixture.delivering()["SIWAD_SEALING_KEYS"] ?? "")'\n"
        let settings = key + "delivery_allow: 127.0.0.0/8\n"
        try await withDaemon(settings) { fixture, daemon, reload in
            try await WebhookReceiver.with(try DaemonFixture.secret) { receiver in
                try await fixture.addEndpoint("shop", receiver.url)
                try await reload(
                    settings + """
                        effects: off
                        delivery_proxy: http://127.0.0.1:1
                        delivery_concurrency: 7
                        delivery_retention: 40d
                        """
                )
                let report = try #require(daemon.log.last { $0.contains("configuration re-read") })
                for name in ["effects", "delivery_proxy", "delivery_concurrency", "delivery_retention"] {
                    #expect(report.contains(name), "\(report)")
                }
                for name in ["sealing_keys", "delivery_allow"] { #expect(!report.contains(name), "\(report)") }
                try await fixture.revoke(1)
                try await eventually("the delivery") { try await fixture.deliveries() == ["shop delivered 1"] }
            }
        }
    }
}
