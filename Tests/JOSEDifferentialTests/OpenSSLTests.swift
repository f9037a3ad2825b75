import JOSE
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
private enum OpenSSLCommand {
    static let path = FilePath("/usr/bin/openssl")
    // What can't be opened isn't there.
    static let isThere = (try? FileDescriptor.open(path, .readOnly).close()) != nil
}

/// Verification against the command `openssl dgst -verify`, which shares libcrypto with it and nothing else: which key,
/// padding and digest are asked for, what is signed and what is taken for a signature are decided twice.
@Suite("Signatures beside the openssl command", .enabled(if: OpenSSLCommand.isThere))
struct OpenSSLTests {
    private struct Sample {
        let name: String
        let message: [UInt8]
        let signature: [UInt8]
    }

    private func isValid(_ sample: Sample, in directory: TemporaryDirectory) async throws -> Bool {
        try directory.write(sample.message, to: "message")
        try directory.write(sample.signature, to: "signature")
        let result = try await run(
            .path(OpenSSLCommand.path),
            arguments: [
                "dgst", "-sha256", "-prverify", directory.file("key.pem"), "-signature", directory.file("signature"),
                directory.file("message"),
            ],
            output: .string(limit: 4_096),
            error: .discarded
        )
        let isVerified = result.standardOutput.contains("Verified OK")
        #expect(isVerified == result.terminationStatus.isSuccess)
        return isVerified
    }

    /// None is longer than the modulus: the command reads as much of the file as it needs and leaves the rest alone.
    private func samples(_ key: RSAPrivateKey) throws -> [Sample] {
        var generator = SeededGenerator(seed: 3447)
        let header = Array(#"{"kid":"test","alg":"RS256"}"#.utf8)
        let token = Array(try CompactJWS.signed(header: header, payload: Array("{}".utf8), by: key).utf8)
        let jws = try CompactJWS(parsing: token)
        let message = Array(token[jws.signingInputRange])
        let signature = jws.signature
        let other = try RSAPrivateKey.generate()
        var samples = [
            Sample(name: "genuine", message: message, signature: signature),
            Sample(name: "of an empty message", message: [], signature: try key.sign([])),
            Sample(name: "of any bytes", message: [0, 255, 10, 13], signature: try key.sign([0, 255, 10, 13])),
            Sample(name: "of another key", message: message, signature: try other.sign(message)),
            Sample(name: "of another message", message: message + [0], signature: signature),
            Sample(name: "of nothing", message: message, signature: try key.sign([])),
            Sample(name: "empty", message: message, signature: []),
            Sample(name: "short", message: message, signature: Array(signature.dropLast())),
            Sample(name: "with a leading zero", message: message, signature: [0] + signature),
            Sample(name: "zero", message: message, signature: Array(repeating: 0, count: 256)),
            Sample(name: "all ones", message: message, signature: Array(repeating: 255, count: 256)),
            Sample(name: "the modulus", message: message, signature: key.publicKey.modulus),
            Sample(name: "reversed", message: message, signature: signature.reversed()),
        ]
        for _ in 0..<24 {
            var turned = signature
            let bit = Int.random(in: 0..<(256 * 8), using: &generator)
            turned[bit / 8] ^= 1 << UInt8(bit % 8)
            samples.append(Sample(name: "bit \(bit) of the signature turned", message: message, signature: turned))
            var changed = message
            changed[Int.random(in: changed.indices, using: &generator)] ^= 1
            samples.append(Sample(name: "a bit of the message turned", message: changed, signature: signature))
            let random = (0..<256).map { _ in UInt8.random(in: .min ... .max, using: &generator) }
            samples.append(Sample(name: "random", message: message, signature: random))
        }
        return samples
    }

    @Test("Genuine, changed, foreign and made-up signatures are judged alike.")
    func alike() async throws {
        let key = try RSAPrivateKey.generate()
        let directory = try TemporaryDirectory()
        try directory.write(Array(try key.pem().utf8), to: "key.pem")
        let verifier = try RSAVerifier(key.publicKey)
        var valid = 0
        for sample in try samples(key) {
            let isOurs = verifier.isValid(signature: sample.signature.span, over: sample.message.span)
            #expect(try await isValid(sample, in: directory) == isOurs, "\(sample.name)")
            valid += isOurs ? 1 : 0
        }
        #expect(valid == 3)
    }
}
