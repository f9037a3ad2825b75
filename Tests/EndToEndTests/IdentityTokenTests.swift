import AppleSimulator
import Basics
import JOSE
import TestSupport
import Testing

@Suite("siwad verify with identity tokens", .timeLimit(.minutes(5)))
struct IdentityTokenTests {
    private static let code = "c1f9ad3b67ef44eb4a26c1e0f2bb5f1dd.0.srzwt.pX4zPSN6hE6kCSUnjNVNLQ"

    private func hash(_ text: String) -> String {
        Base64URL.encode(Array(SHA256.digest(Array(text.utf8).span).prefix(16)))
    }

    /// Runs a test with a simulated token for com.example.app, and the options that name it and its key set.
    private func withToken(
        _ body: (_ token: String, _ arguments: [String], TemporaryDirectory) async throws -> Void
    ) async throws {
        try await TemporaryDirectory.with { directory in
            let apple = try SimulatedApple.generate()
            let now = WallTime.now().wholeSeconds
            let claims = """
                {"iss":"https://appleid.apple.com","aud":"com.example.app","exp":\(now + 86_400),"iat":\(now),\
                "sub":"person","nonce":"n-0S6_WzA2Mj","c_hash":"\(hash(Self.code))","at_hash":"\(hash("a1"))"}
                """
            let token = try apple.token(claims: claims)
            let file = try directory.write("identity.jws", token + "\n")
            let keys = try directory.write("keys.json", apple.keySetJSON)
            try await body(token, ["verify", file, "--keys", keys], directory)
        }
    }

    private func names(_ run: CommandRun, _ mark: String) -> [String] {
        run.lines.filter { $0.hasPrefix(mark) }.map { String($0.split(separator: " ")[1]) }
    }

    @Test("Each check of an identity token is explained; what is not given is not compared.")
    func explained() async throws {
        try await withToken { _, arguments, _ in
            let client = ["--client-id", "com.example.app"]
            let bare = try await siwad(arguments + client)
            #expect(bare.status == 0, "\(bare.output)\(bare.errors)")
            #expect(names(bare, "–") == ["nonce", "code", "access-token"])
            let whole = ["--nonce", "n-0S6_WzA2Mj", "--code", Self.code, "--access-token", "a1"]
            let all = try await siwad(arguments + client + whole)
            #expect(all.status == 0, "\(all.output)")
            #expect(
                names(all, "✓") == [
                    "token", "algorithm", "key", "signature", "claims", "kind", "issuer", "audience", "times", "age",
                    "nonce", "code", "access-token", "subject",
                ]
            )
            let later = (WallTime.now() + .seconds(700)).iso8601
            let aged = try await siwad(
                arguments + client + ["--at", later],
                environment: ["SIWAD_IDENTITY_TOKEN_AGE": "1h"]
            )
            #expect(aged.status == 0, "\(aged.output)")
            let wrong: [([String], String, String)] = [
                (["--client-id", "com.example.other"], "audience", "expected com.example.other"),
                (client + ["--nonce", "another"], "nonce", "nonce-mismatch"),
                (client + ["--code", "another"], "code", "code-mismatch"),
                (client + ["--access-token", "another"], "access-token", "access-token-mismatch"),
                (client + ["--at", "2020-01-01"], "times", "not-yet-valid"),
                (client + ["--at", later], "age", "token-too-old"),
            ]
            for (options, check, words) in wrong {
                let run = try await siwad(arguments + options)
                #expect(run.status == 1 && names(run, "✗") == [check], "\(run.output)")
                #expect(run.lines.last?.contains(words) == true, "\(run.output)")
            }
        }
    }

    @Test("Codes and tokens can be read from files, and the token from the answer of Apple's token endpoint.")
    func files() async throws {
        try await withToken { token, arguments, directory in
            let client = ["--client-id", "com.example.app"]
            let code = try directory.write("code", Self.code + "\n")
            let run = try await siwad(arguments + client + ["--code", "@\(code)"])
            #expect(run.status == 0 && names(run, "–") == ["nonce", "access-token"], "\(run.output)")
            let missing = try await siwad(arguments + client + ["--code", "@/nowhere"])
            #expect(missing.status == 1 && missing.errors.contains("/nowhere"))
            let keys = Array(arguments.dropFirst(2))
            for (accessToken, status) in [("a1", 0), ("a2", 1)] as [(String, Int32)] {
                let text = #"{"access_token":"\#(accessToken)","token_type":"Bearer","id_token":"\#(token)"}"#
                let answer = try directory.write("answer-\(accessToken).json", text)
                let run = try await siwad(["verify", answer] + keys + client)
                #expect(run.status == status, "\(run.output)")
                #expect(!run.output.contains("\(accessToken)\""))
            }
            for member in ["identity_token", "identityToken"] {
                let file = try directory.write("\(member).json", #"{"\#(member)":"\#(token)","user":null}"#)
                let run = try await siwad(["verify", file] + keys + client)
                #expect(run.status == 0, "\(run.output)\(run.errors)")
            }
            let empty = try directory.write("empty.json", "{}")
            let refused = try await siwad(["verify", empty] + keys + client)
            #expect(refused.status == 1 && refused.errors.contains("id_token"))
        }
    }

    @Test("Without --client-id, an identity token is refused as a notification, with a note how to explain it.")
    func asNotification() async throws {
        try await withToken { _, arguments, _ in
            let run = try await siwad(arguments)
            #expect(run.status == 1 && names(run, "✗") == ["events"], "\(run.output)")
            #expect(run.errors.contains("--client-id explains it as an identity token"))
            #expect(try await siwad(arguments + ["--nonce", "x"]).status == 64)
        }
    }

    @Test(
        "Real identity tokens are explained at their time.",
        .enabled(if: Vectors.areThere, "the folder ../shared/vectors with real tokens is missing"),
        arguments: [
            ("identity-2019-06.jws", "apple-keys-2019-06.json", "jp.yauth.signin.service2", 1_559_709_290),
            (
                "token-response-2022-11.json", "apple-keys-2022-11.json", "com.fullqueuedeveloper.FQAuthSampleiOSApp",
                1_669_250_784
            ),
            (
                "token-response-2022-12.json", "apple-keys-2022-11.json", "com.fullqueuedeveloper.FQAuthSampleiOSApp",
                1_670_126_249
            ),
        ]
    )
    func real(file: String, keys: String, client: String, issuedAt: Int) async throws {
        let arguments = ["verify", Vectors.path(file), "--keys", Vectors.path(keys), "--client-id", client]
        let good = try await siwad(arguments + ["--at", "\(issuedAt + 3)"])
        #expect(good.status == 0, "\(good.output)\(good.errors)")
        #expect(names(good, "✓").contains("access-token") == file.hasSuffix(".json"))
        let late = try await siwad(arguments + ["--at", "\(issuedAt + 601)"])
        #expect(late.status == 1 && names(late, "✗") == ["age"], "\(late.output)")
    }
}
