import Testing

@testable import Settings

@Suite("The default of a setting")
struct DefaultTests {
    /// Operators rely on them: a daemon whose configuration leaves a setting out keeps its behaviour.
    private static let defaults: [SettingKey: String] = [
        .databaseConnections: "4",
        .listen: "127.0.0.1:8080",
        .notificationPath: "/apple/notifications",
        .operationsListen: "127.0.0.1:9090",
        .keysURL: "https://appleid.apple.com/auth/keys",
        .keysRefresh: "1h",
        .keysRefreshFloor: "60s",
        .keysRefreshBurst: "5",
        .keysMaximumAge: "30d",
        .issuer: "https://appleid.apple.com",
        .appleURL: "https://appleid.apple.com",
        .clockLeeway: "5m",
        .spoolLimit: "1GiB",
        .batchLimit: "256",
        .queueLimit: "8192",
        .queueBytes: "64MiB",
        .deadLetterLimit: "100000",
        .retention: "400d",
        .sessionRetention: "30d",
        .deliveryRetention: "30d",
        .eraseAfter: "30d",
        .effects: "on",
        .deliveryConcurrency: "256",
        .clientSecretLifetime: "5m",
        .applicationSocketMode: "0660",
        .codeExchange: "preferred",
        .nonce: "required",
        .identityTokenAge: "10m",
        .keepNames: "true",
        .signInRetention: "30d",
        .logLevel: "info",
        .shutdownGrace: "30s",
    ]

    @Test("is the promised one; the other settings have none.", arguments: SettingKey.allCases)
    func promised(key: SettingKey) {
        #expect(key.defaultText == Self.defaults[key])
    }
}
