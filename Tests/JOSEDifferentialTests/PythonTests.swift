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

/// Sealed texts and signatures against other implementations of JOSE, so that the secrets of a database can be opened without
/// siwad, and Apple can verify client secrets.
@Suite(
    "Sealed texts and ES256 compared with Python's libraries",
    .enabled("joserfc is not installed in .build/python; deploy/test installs it") { await Python.hasJOSE }
)
struct PythonTests {
    @Test("Each opens what the other sealed.")
    func sealing() async throws {
        let lines = try ["2026-11", "k"].map { name in try SealingKeys.newLine(name: name) }
        for (line, content) in zip(lines, [#"{"secret":"whsec_ä"}"#, ""]) {
            let keys = try SealingKeys(parsing: line)
            let sealed = String(decoding: try keys.seal(Array(content.utf8)), as: UTF8.self)
            let script = """
                import base64, sys
                from joserfc import jwe
                from joserfc.jwk import OctKey
                name, key, sealed, content = sys.argv[1:]
                key = OctKey.import_key(base64.b64decode(key))
                assert jwe.decrypt_compact(sealed, key).plaintext == content.encode()
                header = {"alg": "dir", "enc": "A256GCM", "kid": name}
                sys.stdout.write(jwe.encrypt_compact(header, content.encode(), key))
                """
            let parts = line.split(separator: ":", maxSplits: 1).map(String.init)
            let theirs = try await Python.run(script, parts + [sealed, content])
            #expect(try keys.open(theirs) == Array(content.utf8))
        }
    }

    @Test("PyJWT and joserfc verify ES256 signatures, also those whose r or s begins with a zero.")
    func signatures() async throws {
        let key = try P256PrivateKey.generate()
        let input = Base64URL.encode(Array(#"{"alg":"ES256","kid":"KEY1234567"}"#.utf8)) + ".e30"
        var tokens: [String: String] = [:]
        // One in 256 has a short r.
        for _ in 0..<20_000 where tokens.count < 3 {
            let signature = try key.sign(Array(input.utf8))
            let kind = signature[0] == 0 ? "r" : signature[32] == 0 ? "s" : "both long"
            tokens[kind] = input + "." + Base64URL.encode(signature)
        }
        #expect(tokens.count == 3)
        let script = """
            import base64, sys
            from cryptography.hazmat.primitives.asymmetric import ec
            from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
            import jwt
            from joserfc import jws
            from joserfc.jwk import ECKey
            point, *tokens = sys.argv[1:]
            key = ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), base64.b64decode(point))
            pem = key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
            for token in tokens:
                assert jwt.decode(token, key, algorithms=["ES256"]) == {}
                assert jws.deserialize_compact(token, ECKey.import_key(pem), algorithms=["ES256"]).payload == b"{}"
            sys.stdout.write(str(len(tokens)))
            """
        let verified = try await Python.run(script, [Base64.encode(key.publicKey.point)] + tokens.values)
        #expect(verified == Array("3".utf8))
    }
}

enum Python {
    static let path = FilePath(
        "/" + #filePath.split(separator: "/").dropLast(3).joined(separator: "/") + "/.build/python/bin/python"
    )

    static var hasJOSE: Bool {
        get async {
            // What can't be started isn't there.
            let result = try? await Subprocess.run(
                .path(path),
                arguments: ["-c", "import joserfc"],
                output: .discarded,
                error: .discarded
            )
            return result?.terminationStatus.isSuccess ?? false
        }
    }

    static func run(_ script: String, _ arguments: [String]) async throws -> [UInt8] {
        let result = try await Subprocess.run(
            .path(path),
            arguments: Arguments(["-c", script] + arguments),
            output: .bytes(limit: 65_536),
            error: .string(limit: 65_536)
        )
        #expect(result.terminationStatus.isSuccess, "\(result.standardError)")
        return result.standardOutput
    }
}
