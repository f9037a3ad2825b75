import NIOPosix
import TestSupport
import Testing

@testable import WebClient

@Suite("Fetching a key set over TLS", .enabled(if: OpenSSL.isInstalled), .timeLimit(.minutes(5)))
struct KeyFetchTLSTests {
    /// Returns the error of a fetch from an `openssl s_server` with these options. Its certificate is never trusted.
    private func failure(_ options: [String]) async throws -> String {
        let directory = try TemporaryDirectory()
        try await OpenSSL.makeCertificate("ec", in: directory)
        return try await OpenSSL.withServer(options, in: directory) { port in
            let fetcher = KeySetFetcher(
                url: try KeySetURL(parsing: "https://localhost:\(port)/"),
                version: "test",
                eventLoopGroup: MultiThreadedEventLoopGroup.singleton
            )
            let error = await #expect(throws: WebClientError.self) { _ = try await fetcher.fetch() }
            return error?.message ?? ""
        }
    }

    @Test("No key set is fetched over a version before TLS 1.2.", arguments: ["-tls1", "-tls1_1"])
    func old(version: String) async throws {
        let message = try await failure([version, "-cipher", "ALL:@SECLEVEL=0"])
        #expect(message.contains("localhost speaks neither TLS 1.2 nor 1.3"), "\(message)")
    }

    @Test(
        "Over TLS 1.2 and 1.3 the fetch fails only because of the server's certificate.",
        arguments: ["-tls1_2", "-tls1_3"]
    )
    func recent(version: String) async throws {
        let message = try await failure([version])
        #expect(message.contains("does not trust the certificate of localhost"), "\(message)")
    }
}
