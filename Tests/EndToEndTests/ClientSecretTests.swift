import Basics
import Foundation
import JOSE
import TestSupport
import Testing

@Suite("siwad client-secret", .timeLimit(.minutes(5)))
struct ClientSecretTests {
    private static let apps = "A1B2C3D4E5/com.example.app+com.example.web,ZZZZZZZZZ9/org.other"

    /// A private key made by the openssl command, in a file that only its user can read.
    private func key(_ name: String, _ arguments: [String], in directory: TemporaryDirectory) async throws -> String {
        let file = directory.file(name)
        let made = try await OpenSSL.run(["genpkey"] + arguments + ["-out", file])
        #expect(made.isSuccess, "\(made.output)")
        try FileManager.default.setAttributes([.posixPermissions: 0o600], ofItemAtPath: file)
        return file
    }

    private static let p256 = ["-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256"]

    private func environment(_ keys: String) -> [String: String] {
        ["SIWAD_APPS": Self.apps, "SIWAD_APPLE_KEYS": keys]
    }

    private func secret(_ run: CommandRun) throws -> (header: String, claims: JSONValue, parts: [Substring]) {
        #expect(run.status == 0, "\(run.errors)")
        let parts = try #require(run.lines.first).split(separator: ".")
        let header = String(decoding: try Base64URL.decode(String(parts[0])), as: UTF8.self)
        return (header, try JSONValue(parsing: Base64URL.decode(String(parts[1]))), parts)
    }

    @Test("The secret has exactly Apple's header and claims, and openssl verifies its signature.")
    func openSSL() async throws {
        try await TemporaryDirectory.with { directory in
            let file = try await key("AuthKey_KEY1234567.p8", Self.p256, in: directory)
            let command = ["client-secret", "--client-id", "com.example.web"]
            let before = WallTime.now().wholeSeconds
            let run = try await siwad(command, environment: environment("A1B2C3D4E5/KEY1234567=\(file)"))
            let (header, claims, parts) = try secret(run)
            #expect(header == #"{"alg":"ES256","kid":"KEY1234567"}"#)
            #expect(claims.members?.map(\.name) == ["iss", "iat", "exp", "aud", "sub"])
            #expect(claims["iss"]?.string == "A1B2C3D4E5" && claims["sub"]?.string == "com.example.web")
            #expect(claims["aud"]?.string == "https://appleid.apple.com")
            let issued = try #require(claims["iat"]?.integer)
            #expect(before...before + 60 ~= issued && claims["exp"]?.integer == issued + 300)

            let signature = try Base64URL.decode(String(parts[2]))
            #expect(signature.count == 64)
            var content: [UInt8] = []
            for half in [signature.prefix(32), signature.suffix(32)] {
                let digits = Array(half.drop { $0 == 0 })
                let number: [UInt8] = digits[0] < 0x80 ? digits : [0] + digits
                content += [0x02, UInt8(number.count)] + number
            }
            try directory.write([0x30, UInt8(content.count)] + content, to: "signature")
            try directory.write(Array("\(parts[0]).\(parts[1])".utf8), to: "message")
            let verified = try await OpenSSL.run([
                "dgst", "-sha256", "-prverify", file, "-signature", directory.file("signature"),
                directory.file("message"),
            ])
            #expect(verified.output.contains("Verified OK"), "\(verified.output)")
        }
    }

    @Test(
        "PyJWT and joserfc verify a secret.",
        .enabled(if: FileManager.default.fileExists(atPath: python), "there is no .build/python")
    )
    func libraries() async throws {
        try await TemporaryDirectory.with { directory in
            let file = try await key("AuthKey_KEY1234567.p8", Self.p256, in: directory)
            let command = ["client-secret", "--client-id", "com.example.app", "--lifetime", "180d"]
            let run = try await siwad(command, environment: environment("A1B2C3D4E5/KEY1234567=\(file)"))
            let script = """
                import sys
                from cryptography.hazmat.primitives.serialization import load_pem_private_key, Encoding, PublicFormat
                import jwt
                from joserfc import jwt as jose
                from joserfc.jwk import ECKey
                key = load_pem_private_key(open(sys.argv[1], "rb").read(), None).public_key()
                claims = jwt.decode(sys.argv[2], key, algorithms=["ES256"], audience="https://appleid.apple.com")
                assert claims["exp"] - claims["iat"] == 180 * 86400, claims
                pem = key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
                assert jose.decode(sys.argv[2], ECKey.import_key(pem), algorithms=["ES256"]).claims == claims
                print(claims["sub"])
                """
            let text = String(try #require(run.lines.first))
            let result = try await ChildProcess.run([Self.python, "-c", script, file, text])
            #expect(result.output == "com.example.app\n", "\(result.output)")
        }
    }

    static let python =
        "/" + #filePath.split(separator: "/").dropLast(3).joined(separator: "/") + "/.build/python/bin/python"

    @Test("The key of the app signs before the one of the team, and JSON names it.")
    func choice() async throws {
        try await TemporaryDirectory.with { directory in
            let team = try await key("team.p8", Self.p256, in: directory)
            let app = try await key("app.p8", Self.p256, in: directory)
            let keys = "A1B2C3D4E5/TEAM567890=\(team),A1B2C3D4E5/com.example.app/APP4567890=\(app)"
            let environment = environment(keys)
            for client in ["com.example.app", "com.example.web"] {
                let run = try await siwad(["client-secret", "--client-id", client, "--json"], environment: environment)
                let object = try JSONValue(parsing: Array(run.output.utf8))
                #expect(object["key_id"]?.string == "APP4567890" && object["team_id"]?.string == "A1B2C3D4E5")
                #expect(object["client_secret"]?.string?.split(separator: ".").count == 3)
            }
            let other = try await siwad(["client-secret", "--client-id", "org.other"], environment: environment)
            #expect(other.status == 78 && other.errors.contains("ZZZZZZZZZ9"), "\(other.errors)")
            let unknown = try await siwad(["client-secret", "--client-id", "com.unknown"], environment: environment)
            #expect(unknown.status == 78 && unknown.errors.contains("SIWAD_APPS"), "\(unknown.errors)")
        }
    }

    @Test("A secret is valid for at most 15,777,000 seconds.")
    func lifetimes() async throws {
        try await TemporaryDirectory.with { directory in
            let file = try await key("key.p8", Self.p256, in: directory)
            let environment = environment("A1B2C3D4E5/KEY1234567=\(file)")
            let command = ["client-secret", "--client-id", "com.example.app", "--lifetime"]
            let (_, claims, _) = try secret(try await siwad(command + ["15777000s"], environment: environment))
            let issued = try #require(claims["iat"]?.integer)
            #expect(claims["exp"]?.integer == issued + 15_777_000)
            for lifetime in ["15777001s", "59s", "0s", "1y", "-5m"] {
                let run = try await siwad(command + [lifetime], environment: environment)
                #expect(run.status == 64 && run.errors.contains("15777000s"), "\(run.errors)")
            }
        }
    }

    @Test("Without --lifetime, a secret is valid for SIWAD_CLIENT_SECRET_LIFETIME.")
    func configuredLifetime() async throws {
        try await TemporaryDirectory.with { directory in
            let file = try await key("key.p8", Self.p256, in: directory)
            var environment = environment("A1B2C3D4E5/KEY1234567=\(file)")
            environment["SIWAD_CLIENT_SECRET_LIFETIME"] = "90d"
            let command = ["client-secret", "--client-id", "com.example.app"]
            for (options, lifetime) in [([], 90 * 86_400), (["--lifetime", "7m"], 420)] as [([String], Int64)] {
                let (_, claims, _) = try secret(try await siwad(command + options, environment: environment))
                let issued = try #require(claims["iat"]?.integer)
                #expect(claims["exp"]?.integer == issued + lifetime)
            }
            environment["SIWAD_CLIENT_SECRET_LIFETIME"] = "15777001s"
            let run = try await siwad(command, environment: environment)
            #expect(run.status == 78 && run.errors.contains("SIWAD_CLIENT_SECRET_LIFETIME"), "\(run.errors)")
        }
    }

    @Test("A file that is no key of Sign in with Apple is refused with the reason, and exit code 78.")
    func badKeys() async throws {
        try await TemporaryDirectory.with { directory in
            let good = try await key("AuthKey_KEY1234567.p8", Self.p256, in: directory)
            let open = try await key("open.p8", Self.p256, in: directory)
            try FileManager.default.setAttributes([.posixPermissions: 0o644], ofItemAtPath: open)
            let rsa = try await key("rsa.p8", ["-algorithm", "RSA"], in: directory)
            let wide = try await key(
                "wide.p8",
                ["-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-384"],
                in: directory
            )
            let encrypted = try await key("encrypted.p8", Self.p256 + ["-aes256", "-pass", "pass:x"], in: directory)
            let cases = [
                ("A1B2C3D4E5/KEY1234567=\(open)", "other users"), ("A1B2C3D4E5/KEY1234567=\(rsa)", "elliptic curves"),
                ("A1B2C3D4E5/KEY1234567=\(wide)", "another curve than P-256"),
                ("A1B2C3D4E5/KEY1234567=\(encrypted)", "encrypted"), ("A1B2C3D4E5/KEY0000000=\(good)", "another key"),
                ("A1B2C3D4E5/KEY1234567=/nowhere", "check the path"),
                ("A1B2C3D4E5/KEY1234567", "lacks a team, a key id or a file"),
                ("A1B2C3D4E/KEY1234567=\(good)", "team id"), ("A1B2C3D4E5/key=\(good)", "key id"),
                ("A1B2C3D4E5/KEY1234567=\(good),A1B2C3D4E5/KEY1234567=\(good)", "again"),
            ]
            for (keys, reason) in cases {
                let command = ["client-secret", "--client-id", "com.example.app"]
                let run = try await siwad(command, environment: environment(keys))
                #expect(run.status == 78 && run.errors.contains(reason), "\(reason): \(run.errors)")
                #expect(run.output.isEmpty)
            }
            let none = ["SIWAD_APPS": Self.apps]
            let run = try await siwad(["client-secret", "--client-id", "com.example.app"], environment: none)
            #expect(run.status == 78 && run.errors.contains("SIWAD_APPLE_KEYS"), "\(run.errors)")
        }
    }

    @Test("The doctor reads every key, and names an app that has none.")
    func doctor() async throws {
        try await TemporaryDirectory.with { directory in
            let file = try await key("key.p8", Self.p256, in: directory)
            func finding(_ keys: String) async throws -> String {
                let run = try await siwad(["doctor"], environment: environment(keys))
                return run.lines.first { $0.contains(" apple-keys ") }.map(String.init) ?? run.output
            }
            let one = "A1B2C3D4E5/KEY1234567=\(file)"
            let both = try await finding("\(one),ZZZZZZZZZ9/KEY1234567=\(file)")
            #expect(both.hasPrefix("✓") && both.hasSuffix("2 keys for client secrets"), "\(both)")
            let partly = try await finding(one)
            #expect(partly.hasPrefix("⚠") && partly.contains("none for org.other"), "\(partly)")
            let none = try await finding("A1B2C3D4E5/KEY1234567=/nowhere")
            #expect(none.hasPrefix("✗") && none.contains("check the path"), "\(none)")
        }
    }
}
