import Basics
import FoundationEssentials
import JOSE
import Terminal
import Testing

@testable import siwad

@Suite("Simulated notifications")
struct SimulationTests {
    /// Runs `body` with a directory that is removed afterwards.
    private func withDirectory(_ body: (String) async throws -> Void) async throws {
        let directory = FileManager.default.temporaryDirectory.path + "/siwad-tests-\(UInt64.random(in: 0 ... .max))"
        try FileManager.default.createDirectory(atPath: directory, withIntermediateDirectories: true)
        defer {
            // Files left in a temporary directory do no harm.
            try? FileManager.default.removeItem(atPath: directory)
        }
        try await body(directory)
    }

    private func token(_ directory: String, _ more: String...) async throws -> String {
        let arguments = ["simulate", "token", "--key", directory + "/key.pem", "--app", "com.example.app"]
        let result = await siwadCommand(arguments + more)
        #expect(result.errors == "")
        let path = directory + "/token"
        try result.output.write(toFile: path, atomically: true, encoding: .utf8)
        return path
    }

    @Test("verify accepts a simulated token with the key set of its key, as of its own time.")
    func verifies() async throws {
        try await withDirectory { directory in
            #expect(await siwad("simulate", "keys", "--out", directory).status == .done)
            let path = try await token(
                directory,
                "--type",
                "consent-revoked",
                "--sub",
                "a.b",
                "--issued-at",
                "2026-01-02T03:04:05Z"
            )
            let environment = ["SIWAD_APPS": "A1B2C3D4E5/com.example.app"]
            let result = await siwad(
                "verify",
                path,
                "--keys",
                directory + "/keys.json",
                "--at",
                "2026-01-02T03:05:00Z",
                environment: environment
            )
            #expect(result.status == .done)
            #expect(result.lines.count == 10)
            #expect(result.lines.allSatisfy { $0.hasPrefix("✓ ") })
            #expect(result.lines.last?.contains("consent-revoked of \"a.b\"") == true)
        }
    }

    @Test("The key set has three keys, as Apple's, and the first one is not the key of the file.")
    func keySet() async throws {
        try await withDirectory { directory in
            let created = await siwad("simulate", "keys", "--out", directory, "--json")
            let keyID = try JSONValue(parsing: Array(created.output.utf8))["kid"]?.string
            let set = try JSONWebKeySet(parsing: try readFile(atPath: directory + "/keys.json"))
            let names = set.keys.map(\.keyID)
            #expect(Set(names).count == 3)
            #expect(names.firstIndex { $0 == keyID } ?? 0 > 0, "\(names)")
        }
    }

    @Test("A control command that no simulated Apple answers names what to start.")
    func nothingAnswers() async throws {
        let closed = try ClosedPort()
        let url = "http://127.0.0.1:\(closed.port)"
        let result = await siwad("simulate", "sign-in", "--apple-url", url)
        let step = "start siwad dev or siwad simulate apple, or correct --apple-url"
        #expect(result.status == .unavailable)
        #expect(result.errors == "siwad: nothing answers at \(url)/simulator/sign-in; \(step)\n")
    }

    @Test(
        "Wrong options of behave are wrong usage: the error names the options and the next step.",
        arguments: [
            ([], "nothing would change: add --delay, a response (--status, --body, "),
            (["--endpoint", "keys"], "--endpoint and --times need an effect: add --delay, a response (--status, "),
            (["--times", "2", "--rotate-keys"], "--endpoint and --times need an effect: add --delay, "),
            (["--endpoint", "token2", "--cut"], "Please provide one of 'keys', 'token' or 'revoke'"),
            (["--tamper", "aud"], "Please provide one of 'sub' and 'at_hash'"),
            (["--flag-form", "number"], "Please provide one of 'text' and 'boolean'"),
            (["--endpoint", "keys", "--tamper", "sub"], "leave --endpoint out, or write --endpoint token"),
            (["--cut", "--drop"], "choose one of a response (--status, --body, --size, --content-type, "),
            (["--location", "https://example.com", "--tamper", "sub"], "choose one of a response (--status, "),
            (["--times", "0", "--cut"], "--times must be from 1 to 1000000"),
            (["--delay", "-1"], "--delay must be from 0 to 600000"),
            (["--status", "199"], "--status must be from 200 to 599"),
            (["--size", "16777217"], "--size must be from 0 to 16777216"),
            (["--throttle", "86401"], "--throttle must be from 0 to 86400"),
            (["--content-type", "a\nb"], "--content-type must be visible ASCII"),
            (["--location", "ä"], "--location must be visible ASCII"),
        ] as [([String], String)]
    )
    func behaviour(options: [String], error: String) async {
        let result = await siwadCommand(["simulate", "behave"] + options)
        #expect(result.status == .usage)
        #expect(result.errors.contains(error), "\(result.errors)")
        #expect(result.errors.hasSuffix(": see 'siwad simulate behave --help'\n"), "\(result.errors)")
        let words = result.errors.split { !$0.isLetter && $0 != "_" }
        for member in ["delay_ms", "retry_after", "content_type", "rotate_keys", "repeat_code"] {
            #expect(!words.contains(Substring(member)), "\(result.errors)")
        }
    }

    @Test("A number that simulate sign-in can't use is wrong usage.")
    func signIn() async {
        for (option, value) in [("--age", "1000000001"), ("--real-user-status", "3")] {
            let result = await siwadCommand(["simulate", "sign-in", option, value])
            #expect(
                result.status == .usage && result.errors.contains("\(option) must be from 0 to"),
                "\(result.errors)"
            )
        }
    }

    @Test("verify accepts every form of body that the endpoint accepts, with white space around it.")
    func bodies() async throws {
        try await withDirectory { directory in
            _ = await siwad("simulate", "keys", "--out", directory)
            let path = try await token(directory, "--type", "consent-revoked")
            let jws = try String(contentsOfFile: path, encoding: .utf8).split(whereSeparator: \.isNewline)[0]
            func verify(_ body: String) async throws -> CommandResult {
                try body.write(toFile: path, atomically: true, encoding: .utf8)
                return await siwad("verify", path, "--keys", directory + "/keys.json")
            }
            let object = #"{"payload":"\#(jws)"}"#
            for body in ["\(jws)", "\n\t \(jws)\r\n \t", object, "\r\n\t \(object) \n", "payload=\(jws)\n"] {
                let result = try await verify(body)
                #expect(result.status == .done)
                #expect(result.lines.count == 10)
            }
            for body in [" {}", "\n{\"payload\":\"\(jws)", "payload=%zz", "payload=\(jws)&payload=\(jws)"] {
                let result = try await verify(body)
                #expect(result.status == .failed)
                #expect(result.lines.isEmpty)
                #expect(result.errors.hasPrefix("siwad: malformed-body: Send a JSON object"))
            }
            #expect(try await verify("signedPayload=\(jws)").errors.hasPrefix("siwad: app-store-notification: "))
            for junk in ["", "\n", "x", " \(jws)!", "\(jws) \(jws)"] {
                let result = try await verify(junk)
                #expect(result.status == .failed)
                #expect(result.lines.count == 1)
                #expect(result.output.hasPrefix("✗ token      malformed-token: Send three parts of base64url"))
            }
        }
    }

    @Test("verify stops at the first failed check with exit code 1.")
    func fails() async throws {
        try await withDirectory { directory in
            _ = await siwad("simulate", "keys", "--out", directory)
            let path = try await token(directory, "--type", "consent-revoked", "--issued-at", "2026-01-02")
            let keys = directory + "/keys.json"
            let other = ["SIWAD_APPS": "A1B2C3D4E5/com.example.other"]
            let audience = await siwad("verify", path, "--keys", keys, "--at", "2026-01-02", environment: other)
            #expect(audience.status == .failed)
            #expect(audience.errors.isEmpty)
            #expect(audience.lines.last?.hasPrefix("✗ audience") == true)
            let late = await siwad("verify", path, "--keys", keys, "--at", "2026-01-05", "--json")
            #expect(late.status == .failed)
            #expect(late.lines.last?.hasPrefix(#"{"check":"times","passed":false,"#) == true)
            #expect(late.lines.contains { $0.hasPrefix(#"{"check":"audience","passed":null,"#) })
        }
    }

    @Test("simulate keys does not replace an existing key.")
    func keepsKey() async throws {
        try await withDirectory { directory in
            _ = await siwad("simulate", "keys", "--out", directory)
            let before = FileManager.default.contents(atPath: directory + "/key.pem")
            let again = await siwad("simulate", "keys", "--out", directory)
            #expect(again.status == .failed)
            #expect(again.errors == "siwad: \(directory)/key.pem exists: use it, or choose another --out\n")
            #expect(FileManager.default.contents(atPath: directory + "/key.pem") == before)
            let rights = try FileManager.default.attributesOfItem(atPath: directory + "/key.pem")[.posixPermissions]
            #expect((rights as? Int) == 0o600)
        }
    }

    @Test("A missing key file is reported with the next step.")
    func missingKey() async {
        let result = await siwad(
            "simulate",
            "token",
            "--key",
            "/nowhere/key.pem",
            "--type",
            "x",
            "--app",
            "com.example.app"
        )
        #expect(result.status == .failed)
        #expect(
            result.errors == "siwad: --key /nowhere/key.pem: No such file or directory: "
                + "write one with siwad simulate keys --out DIR\n"
        )
    }

    @Test("A file that can't be used as a key or as a key set is reported with a next step that fits.")
    func unusableFiles() async throws {
        try await withDirectory { directory in
            let event = ["--type", "x", "--app", "com.example.app"]
            let folder = await siwadCommand(["simulate", "token", "--key", directory] + event)
            #expect(folder.status == .failed)
            #expect(folder.errors == "siwad: --key \(directory): Is a directory: name a file in it\n")
            let file = directory + "/file"
            try "{}".write(toFile: file, atomically: true, encoding: .utf8)
            let keys = await siwad("verify", "/dev/null", "--keys", file)
            #expect(keys.status == .failed)
            #expect(keys.errors.hasPrefix("siwad: \(file) is no key set: "), "\(keys.errors)")
            let step = "pass the keys.json of siwad simulate keys, or a copy of https://appleid.apple.com/auth/keys"
            #expect(keys.errors.hasSuffix(": \(step)\n"), "\(keys.errors)")
        }
    }

    @Test("simulate send refuses a rate that is too low.")
    func rate() async throws {
        try await withDirectory { directory in
            _ = await siwad("simulate", "keys", "--out", directory)
            let send = [
                "simulate", "send", "--key", directory + "/key.pem", "--type", "x", "--app", "com.example.app",
                "http://127.0.0.1:1/", "--count",
            ]
            for rate in ["1e-300", "0.000999", "0", "-1", "nan"] {
                let result = await siwadCommand(send + ["2", "--rate", rate])
                #expect(result.status == .usage)
                #expect(
                    result.errors == "siwad: --rate must be at least 0.001: see 'siwad simulate send --help'\n"
                )
            }
            #expect(await siwadCommand(send + ["1", "--rate", "0.001"]).status == .unavailable)
        }
    }

    @Test("Network errors are reported in plain words.")
    func plainWords() async throws {
        try await withDirectory { directory in
            _ = await siwad("simulate", "keys", "--out", directory)
            let key = ["--key", directory + "/key.pem"]
            let send = ["simulate", "send", "--type", "x", "--app", "com.example.app"] + key
            let refused = await siwadCommand(send + ["http://127.0.0.1:1/"])
            #expect(refused.status == .unavailable)
            #expect(refused.errors == "siwad: no answer: connection refused: check the URL\n")
            let nowhere = await siwadCommand(send + ["http://nowhere..invalid/"])
            #expect(
                nowhere.errors == "siwad: no answer: the host name nowhere..invalid is not known: check the URL\n"
            )
            let listen = await siwadCommand(["simulate", "serve", "--listen", "nowhere..invalid:0"] + key)
            #expect(
                listen.errors
                    == "siwad: cannot listen on nowhere..invalid:0: the host name nowhere..invalid is not known: "
                    + "correct it in --listen, or write an address such as 127.0.0.1\n"
            )
            let keys = ["SIWAD_KEYS_URL": "http://127.0.0.1:1/keys"]
            let verify = await siwad("verify", "/dev/null", environment: keys)
            #expect(
                verify.errors == "siwad: cannot reach http://127.0.0.1:1/keys: connection refused; "
                    + "check the network and the URL\n"
            )
        }
    }
}
