import Listening
import NotificationServer
import TestSupport
import Testing

@Suite("TLS with openssl at the other end", .enabled(if: OpenSSL.isInstalled), .timeLimit(.minutes(5)))
struct CipherSuiteTests {
    private let directory: TemporaryDirectory

    init() throws {
        directory = try TemporaryDirectory()
    }

    /// Runs `body` with the port of an endpoint whose key is of this kind.
    private func withEndpoint(_ kind: String, _ body: (_ port: Int) async throws -> Void) async throws {
        try await OpenSSL.makeCertificate(kind, in: directory)
        let certificates = try ServerCertificates(
            certificateFile: directory.file("certificate.pem"),
            keyFile: directory.file("key.pem")
        )
        try await TestServer.with(certificates: certificates) { server in try await body(server.port) }
    }

    /// The cipher suite that a client with these options agrees on with the endpoint; nil: none.
    private func agreed(_ port: Int, _ options: [String]) async throws -> Substring? {
        let client = ["s_client", "-connect", "127.0.0.1:\(port)", "-servername", "localhost"]
        let output = try await OpenSSL.run(client + options).output
        let words = "Cipher is "
        let line = try #require(output.split(separator: "\n").first { $0.contains(words) }, "\(output)")
        let name = line.split(separator: " ").last
        return name == "(NONE)" ? nil : name
    }

    @Test(
        "TLS 1.2 uses only cipher suites with ECDHE and AEAD, although the client offers others.",
        arguments: ["rsa:2048", "ec"]
    )
    func suites(_ kind: String) async throws {
        let known = try await OpenSSL.run(["ciphers", "-tls1_2", "ALL:COMPLEMENTOFALL:@SECLEVEL=0"])
        let names = known.output.split { $0 == ":" || $0.isNewline }.filter { !$0.hasPrefix("TLS_") }
        #expect(names.count > 60, "\(known.output)")
        try await withEndpoint(kind) { port in
            var accepted: Set<Substring> = []
            for name in names {
                let response = try await agreed(port, ["-tls1_2", "-cipher", "\(name):@SECLEVEL=0"])
                if let response { accepted.insert(response) }
            }
            let prefix = kind == "ec" ? "ECDHE-ECDSA-" : "ECDHE-RSA-"
            let wanted = ["AES128-GCM-SHA256", "AES256-GCM-SHA384", "CHACHA20-POLY1305"]
            #expect(accepted == Set(wanted.map { Substring(prefix + $0) }))
        }
    }

    @Test("No version before TLS 1.2 is agreed on; 1.2 and 1.3 are.", arguments: ["rsa:2048", "ec"])
    func versions(_ kind: String) async throws {
        try await withEndpoint(kind) { port in
            for (version, isAgreed) in [("-tls1", false), ("-tls1_1", false), ("-tls1_2", true), ("-tls1_3", true)] {
                let response = try await agreed(port, [version, "-cipher", "ALL:@SECLEVEL=0"])
                #expect((response != nil) == isAgreed, "\(version): \(response ?? "none")")
            }
        }
    }
}
