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

/// Sealed texts against joserfc, another implementation of JOSE, so that the secrets of a database can be opened without siwad.
@Suite(
    "Sealed texts compared with joserfc",
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
