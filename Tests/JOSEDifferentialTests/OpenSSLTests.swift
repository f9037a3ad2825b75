import JOSE
import StoreTestSupport
import TestSupport
import Testing

/// Verification against the command `openssl dgst -verify`, which shares libcrypto with it and nothing else: which key,
/// padding and digest are asked for, what is signed and what is taken for a signature are decided twice.
@Suite("Signatures compared with the openssl command", .enabled(if: OpenSSLCommand.isThere))
struct OpenSSLTests {
    private struct Sample {
        let name: String
        let message: [UInt8]
        let signature: [UInt8]
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

    @Test("Both accept and refuse the same genuine, changed, foreign and invented signatures.")
    func alike() async throws {
        let key = try RSAPrivateKey.generate()
        let directory = try TemporaryDirectory()
        try directory.write(Array(try key.pem().utf8), to: "key.pem")
        let verifier = try RSAVerifier(key.publicKey)
        var valid = 0
        for sample in try samples(key) {
            let isOurs = verifier.isValid(signature: sample.signature.span, over: sample.message.span)
            let isTheirs = try await OpenSSLCommand.verifies(
                sample.signature,
                over: sample.message,
                key: "key.pem",
                in: directory
            )
            #expect(isTheirs == isOurs, "\(sample.name)")
            valid += isOurs ? 1 : 0
        }
        #expect(valid == 3)
    }

    /// What a signature may say instead of what it has to, each by the name of what is wrong with it.
    private func encodings(_ digest: [UInt8]) -> [(name: String, bytes: [UInt8])] {
        let oid: [UInt8] = [0x06, 0x09, 0x60, 0x86, 0x48, 0x01, 0x65, 0x03, 0x04, 0x02, 0x01]
        let octets: [UInt8] = [0x04, 0x20] + digest
        let proper = [0x30, 0x31, 0x30, 0x0D] + oid + [0x05, 0x00] + octets
        func padded(_ info: [UInt8], type: UInt8 = 1, fill: UInt8 = 0xFF, rest: [UInt8] = []) -> [UInt8] {
            let padding = [UInt8](repeating: fill, count: 256 - 3 - info.count - rest.count)
            return [0, type] + padding + [0] + info + rest
        }
        var gap = padded(proper)
        gap[100] = 0xFE
        var unseparated = padded(proper)
        unseparated[255 - proper.count] = 0xFF
        var early = padded(proper)
        early[10] = 0
        return [
            ("nothing", padded(proper)),
            ("no parameters", padded([0x30, 0x2F, 0x30, 0x0B] + oid + octets)),
            ("lengths in long form", padded([0x30, 0x81, 0x31, 0x30, 0x0D] + oid + [0x05, 0x00] + octets)),
            ("another tag", padded([0x31] + proper.dropFirst())),
            (
                "SHA-1 by name",
                padded([0x30, 0x2D, 0x30, 0x09, 0x06, 0x05, 0x2B, 0x0E, 0x03, 0x02, 0x1A, 0x05, 0x00] + octets)
            ),
            ("SHA-512 by name", padded(proper.enumerated().map { $0.offset == 14 ? 3 : $0.element })),
            ("the bare digest", padded(digest)),
            ("something behind the digest", padded(proper, rest: [0])),
            ("much behind the digest", padded(proper, rest: Array(repeating: 0x5A, count: 180))),
            ("a digest that is too short", padded(Array(proper.dropLast()))),
            ("another digest", padded(proper.dropLast() + [digest[31] ^ 1])),
            ("encryption's type of block", padded(proper, type: 2)),
            ("block type 0", padded(proper, type: 0, fill: 0)),
            ("a byte of the padding", gap),
            ("a zero within the padding", early),
            ("no zero behind the padding", unseparated),
            ("no padding", [UInt8](repeating: 0, count: 256 - proper.count) + proper),
        ]
    }

    @Test("Both require that a signature encodes exactly the padded digest.")
    func encodings() async throws {
        let key = try RSAPrivateKey.generate()
        let directory = try TemporaryDirectory()
        try directory.write(Array(try key.pem().utf8), to: "key.pem")
        let verifier = try RSAVerifier(key.publicKey)
        let message = Array("message".utf8)
        for (name, bytes) in encodings(SHA256.digest(message.span)) {
            #expect(bytes.count == 256, "\(name)")
            let signature = try await OpenSSLCommand.sign(raw: bytes, key: "key.pem", in: directory)
            let isOurs = verifier.isValid(signature: signature.span, over: message.span)
            let isTheirs = try await OpenSSLCommand.verifies(signature, over: message, key: "key.pem", in: directory)
            #expect(isOurs == (name == "nothing"), "\(name)")
            #expect(isTheirs == isOurs, "\(name)")
        }
    }

    @Test(
        "Keys of other sizes and other exponents verify what the command verifies.",
        arguments: [(2048, 65_539), (2048, 4_294_967_291), (2056, 65_537), (3072, 65_537), (4096, 2_147_483_649)]
    )
    func keys(_ bits: Int, exponent: UInt32) async throws {
        let directory = try TemporaryDirectory()
        try await OpenSSLCommand.makeKey("key.pem", bits: bits, exponent: exponent, in: directory)
        let key = try RSAPrivateKey(pem: String(decoding: directory.content("key.pem"), as: UTF8.self))
        #expect(key.publicKey.exponent == exponent)
        let verifier = try RSAVerifier(key.publicKey)
        for length in [0, 1, 55, 56, 64, 1_000] {
            let message = [UInt8](repeating: 0x61, count: length)
            let signature = try key.sign(message)
            var turned = signature
            turned[length % turned.count] ^= 0x10
            for sample in [signature, turned] {
                let isOurs = verifier.isValid(signature: sample.span, over: message.span)
                #expect(isOurs == (sample == signature))
                #expect(
                    try await OpenSSLCommand.verifies(sample, over: message, key: "key.pem", in: directory) == isOurs
                )
            }
        }
    }
}
