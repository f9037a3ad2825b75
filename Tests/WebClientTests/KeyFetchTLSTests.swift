import FoundationEssentials
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
        let server = [
            OpenSSL.path, "s_server", "-accept", "127.0.0.1:0", "-cert", directory.file("certificate.pem"), "-key",
            directory.file("key.pem"), "-www",
        ]
        return try await ChildProcess.with(server + options, log: directory.file("log")) {
            let port = try await port(in: directory)
            let fetcher = KeySetFetcher(
                url: try KeySetURL(parsing: "https://localhost:\(port)/"),
                version: "test",
                eventLoopGroup: MultiThreadedEventLoopGroup.singleton
            )
            let error = await #expect(throws: WebClientError.self) { _ = try await fetcher.fetch() }
            return error?.message ?? ""
        }
    }

    /// The port that the server reports.
    private func port(in directory: TemporaryDirectory) async throws -> Substring {
        let deadline = ContinuousClock.now + .seconds(30)
        while true {
            let log = FileManager.default.contents(atPath: directory.file("log")).map {
                String(decoding: $0, as: UTF8.self)
            }
            let lines = (log ?? "").split(separator: "\n", omittingEmptySubsequences: false).dropLast()
            if let line = lines.first(where: { $0.hasPrefix("ACCEPT ") }), let port = line.split(separator: ":").last {
                return port
            }
            try #require(.now < deadline, "\(log ?? "")")
            try await Task.sleep(for: .milliseconds(3))
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
