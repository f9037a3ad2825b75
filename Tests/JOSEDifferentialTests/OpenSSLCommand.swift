import StoreTestSupport
import Subprocess
import TestSupport
import Testing

#if canImport(System)
    import System
#else
    import SystemPackage
#endif

/// The command, where it is installed.
enum OpenSSLCommand {
    static let path = FilePath("/usr/bin/openssl")
    // What can't be opened isn't there.
    static let isThere = (try? FileDescriptor.open(path, .readOnly).close()) != nil

    /// Whether `openssl dgst -verify` takes `signature` for that of the private key in `key` over `message`.
    static func verifies(
        _ signature: [UInt8],
        over message: [UInt8],
        key: String,
        in directory: TemporaryDirectory
    ) async throws -> Bool {
        try directory.write(message, to: "message")
        try directory.write(signature, to: "signature")
        let result = try await run(
            .path(path),
            arguments: [
                "dgst", "-sha256", "-prverify", directory.file(key), "-signature", directory.file("signature"),
                directory.file("message"),
            ],
            output: .string(limit: 4_096),
            error: .discarded
        )
        let isVerified = result.standardOutput.contains("Verified OK")
        #expect(isVerified == result.terminationStatus.isSuccess)
        return isVerified
    }

    /// What the private key in `key` makes of exactly these bytes, without any padding of its own. The command signs no more
    /// than a digest; to decrypt is the same operation (RFC 8017 §5.2.1).
    static func sign(raw message: [UInt8], key: String, in directory: TemporaryDirectory) async throws -> [UInt8] {
        try directory.write(message, to: "encoded")
        let result = try await run(
            .path(path),
            arguments: [
                "pkeyutl", "-decrypt", "-inkey", directory.file(key), "-in", directory.file("encoded"), "-pkeyopt",
                "rsa_padding_mode:none",
            ],
            output: .bytes(limit: 4_096),
            error: .discarded
        )
        #expect(result.terminationStatus.isSuccess)
        return result.standardOutput
    }

    /// Makes a private key, as PEM in the file `key`.
    static func makeKey(_ key: String, bits: Int, exponent: UInt32, in directory: TemporaryDirectory) async throws {
        let result = try await run(
            .path(path),
            arguments: [
                "genpkey", "-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:\(bits)", "-pkeyopt",
                "rsa_keygen_pubexp:\(exponent)", "-out", directory.file(key),
            ],
            output: .discarded,
            error: .discarded
        )
        #expect(result.terminationStatus.isSuccess)
    }
}
