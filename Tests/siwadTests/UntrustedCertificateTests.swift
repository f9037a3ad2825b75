import Ingest
import Listening
import NotificationServer
import Settings
import Terminal
import TestSupport
import Testing

@testable import siwad

@Suite("An endpoint with a self-signed certificate", .timeLimit(.minutes(5)))
struct UntrustedCertificateTests {
    /// Runs `body` with the port of such an endpoint on 127.0.0.1.
    private func withEndpoint(
        _ directory: TemporaryDirectory,
        _ body: (_ port: Int) async throws -> Void
    ) async throws {
        try directory.write(Array(LocalhostCertificate.pem.utf8), to: "tls-certificate.pem")
        try directory.write(Array(LocalhostCertificate.key.utf8), to: "tls-key.pem")
        let environment = [
            "SIWAD_APPS": "AAAAAAAAAA/com.example.one",
            "SIWAD_DATABASE_URL": "host=/nowhere",
            "SIWAD_TLS_CERTIFICATE": directory.file("tls-certificate.pem"),
            "SIWAD_TLS_KEY": directory.file("tls-key.pem"),
        ]
        let daemon = try Daemon(try Configuration(from: SettingsSources(environment: environment)))
        let (ports, running) = AsyncStream.makeStream(of: Int.self)
        let server = NotificationServer(
            address: ListenAddress(host: "127.0.0.1", port: 0),
            path: "/",
            certificates: daemon.certificates,
            metrics: daemon.metrics,
            eventLoops: daemon.loops,
            log: daemon.log,
            onRunning: { running.yield($0) }
        ) { _ in
            { _, _ in .acknowledged }
        }
        do {
            try await withThrowingTaskGroup(of: Void.self) { group in
                group.addTask { try await server.run() }
                var iterator = ports.makeAsyncIterator()
                guard let port = await iterator.next() else { throw CancellationError() }
                try await body(port)
                group.cancelAll()
            }
        } catch {
            await daemon.close()
            throw error
        }
        await daemon.close()
    }

    @Test("causes an error about the untrusted certificate when keys are fetched or notifications sent.")
    func untrusted() async throws {
        let directory = try TemporaryDirectory()
        _ = await siwad("simulate", "keys", "--out", directory.path)
        try await withEndpoint(directory) { port in
            let cause =
                "this machine does not trust the certificate of 127.0.0.1 "
                + "(use one of a known authority, or http: to a loopback address)"
            let event = ["--key", directory.file("key.pem"), "--type", "x", "--app", "com.example.one"]
            let sent = await siwadCommand(["simulate", "send"] + event + ["https://127.0.0.1:\(port)/"])
            #expect(sent.status == .unavailable)
            #expect(sent.errors == "siwad: no answer: \(cause): check the URL\n")
            let url = "https://127.0.0.1:\(port)/keys"
            let verified = await siwad("verify", "/dev/null", environment: ["SIWAD_KEYS_URL": url])
            #expect(verified.status == .unavailable)
            #expect(verified.errors == "siwad: cannot reach \(url): \(cause); check the network and the URL\n")
        }
    }
}
