import FoundationEssentials
import Glibc
import Testing

/// The command `openssl`, as a TLS peer.
package enum OpenSSL {
    package static let isInstalled = access(path, X_OK) == 0
    package static let path = "/usr/bin/openssl"

    /// Runs it with an empty input, and returns its output.
    package static func run(_ arguments: [String]) async throws -> (isSuccess: Bool, output: String) {
        try await ChildProcess.run([path] + arguments)
    }

    /// Creates `certificate.pem` and `key.pem` in a directory: a self-signed certificate for `localhost`.
    ///
    /// - Parameter kind: the key's: `rsa:2048` or `ec`.
    package static func makeCertificate(_ kind: String, in directory: TemporaryDirectory) async throws {
        let parameters = kind == "ec" ? ["-pkeyopt", "ec_paramgen_curve:prime256v1"] : []
        let made = try await run(
            ["req", "-x509", "-newkey", kind] + parameters + [
                "-nodes", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost", "-days", "2", "-out",
                directory.file("certificate.pem"), "-keyout", directory.file("key.pem"),
            ]
        )
        try #require(made.isSuccess, "\(made.output)")
    }

    /// Replaces `certificate.pem` by one with the same key that expired yesterday.
    package static func expireCertificate(in directory: TemporaryDirectory) async throws {
        let (old, new) = (directory.file("certificate.pem"), directory.file("expired.pem"))
        let made = try await run(
            ["x509", "-in", old, "-signkey", directory.file("key.pem"), "-days", "-1", "-out", new]
        )
        try #require(made.isSuccess && rename(new, old) == 0, "\(made.output)")
    }

    /// Runs `s_server` with these options and the certificate of a directory, as a web server on the port that it passes.
    package static func withServer<R: Sendable>(
        _ options: [String],
        in directory: TemporaryDirectory,
        _ body: (Substring) async throws -> R
    ) async throws -> R {
        let server = [
            path, "s_server", "-accept", "127.0.0.1:0", "-cert", directory.file("certificate.pem"), "-key",
            directory.file("key.pem"), "-www",
        ]
        return try await ChildProcess.with(server + options, log: directory.file("log")) {
            try await body(try await port(in: directory))
        }
    }

    /// The port that the server reports.
    private static func port(in directory: TemporaryDirectory) async throws -> Substring {
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
}

/// A self-signed certificate for `localhost`.
package enum LocalhostCertificate {
    package static let pem = """
        -----BEGIN CERTIFICATE-----
        MIIBfjCCASWgAwIBAgIUCuD7LLMM+J4B0nl/9QBwquUkTekwCgYIKoZIzj0EAwIw
        FDESMBAGA1UEAwwJbG9jYWxob3N0MCAXDTI2MTEyMTAyNDYxNloYDzIxMjYxMDI4
        MDI0NjE2WjAUMRIwEAYDVQQDDAlsb2NhbGhvc3QwWTATBgcqhkjOPQIBBggqhkjO
        PQMBBwNCAAQonx6LN8cQ/bGdW1XouXavGXIq27cTi3SQt8x197P6X3Rk/vCLOWcd
        lGg6wzv5oj0tyWmklY0Nc+zBS5PgkZ8To1MwUTAdBgNVHQ4EFgQUXw91nlnMCb49
        k/6YVPULpAiELuMwHwYDVR0jBBgwFoAUXw91nlnMCb49k/6YVPULpAiELuMwDwYD
        VR0TAQH/BAUwAwEB/zAKBggqhkjOPQQDAgNHADBEAiANmS4ksbAUjUNmKGnysF+n
        EDJ3xgLDexjaloGsP36r3AIgPaBAntseUg7Wu3+lFrooD13PtCRlDnR89FqO///z
        nTI=
        -----END CERTIFICATE-----
        """

    /// The private key.
    package static let key = """
        -----BEGIN PRIVATE KEY-----
        MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgUE7yJBm/+PxVYwoK
        +B6/i7UEb8Gc2SptThWEw3LK8cWhRANCAAQonx6LN8cQ/bGdW1XouXavGXIq27cT
        i3SQt8x197P6X3Rk/vCLOWcdlGg6wzv5oj0tyWmklY0Nc+zBS5PgkZ8T
        -----END PRIVATE KEY-----
        """
}
