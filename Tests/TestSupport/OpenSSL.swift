import Glibc
import Testing

/// The command `openssl`, where it is installed, as the other end of TLS.
package enum OpenSSL {
    /// Whether there is one.
    package static let isThere = access(path, X_OK) == 0
    /// Where it is.
    package static let path = "/usr/bin/openssl"

    /// Runs it with these arguments and an empty input, and returns what it printed.
    package static func run(_ arguments: [String]) async throws -> (isSuccess: Bool, output: String) {
        try await Companion.run([path] + arguments)
    }

    /// Makes `certificate.pem` and `key.pem` in a directory: a self-signed certificate for `localhost`.
    ///
    /// - Parameter kind: of the key: `rsa:2048`, or `ec`.
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
}
