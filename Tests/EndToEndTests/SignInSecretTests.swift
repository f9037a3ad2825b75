import AppleSimulator
import Basics
import FoundationEssentials
import Glibc
import JOSE
import StoreTestSupport
import TestSupport
import Testing

/// People sign in through a real daemon against a simulated Apple, with every kind of outcome. Then everything is searched that
/// others could read.
@Suite("Secrets of sign-ins", .timeLimit(.minutes(10)))
struct SignInSecretTests {
    private static let client = "com.example.one"

    /// The processes and files of one run.
    private final class Run {
        let fixture: DaemonFixture
        let directory: TemporaryDirectory
        let apple: String
        let bearer: String
        /// Values that must not be found.
        var secrets: [String]
        /// What others could read, by place.
        var traces: [(place: String, text: String)] = []

        init(
            fixture: DaemonFixture,
            directory: TemporaryDirectory,
            apple: String,
            bearer: String,
            secrets: [String]
        ) {
            self.fixture = fixture
            self.directory = directory
            self.apple = apple
            self.bearer = bearer
            self.secrets = secrets
        }

        var socket: String { directory.file("application.sock") }

        func device(_ members: [String: String] = [:]) async throws -> JSONValue {
            let usual = ["person": "ada", "client_id": SignInSecretTests.client]
            let body = JSONValue.object(
                usual.merging(members) { $1 }.map { JSONValue.Member($0.key, .string($0.value)) }
            )
            let response = try await Web.post(body.compactText, to: "\(apple)/simulator/sign-in")
            let device = try JSONValue(parsing: Array(response.body.utf8))
            let token = try #require(device["identityToken"]?.string, "\(response.body)")
            secrets += token.split(separator: ".").dropFirst().map { String($0.prefix(60)) }
            secrets.append(try #require(device["authorizationCode"]?.string))
            if let nonce = members["nonce"] { secrets.append(nonce) }
            return device
        }

        func behave(_ members: String) async throws {
            let response = try await Web.post("{\(members)}", to: "\(apple)/simulator/behave")
            #expect(response.status == 200, "\(response.body)")
        }

        /// - Returns: the status, and the reason or the state of the refresh token.
        @discardableResult
        func post(_ members: [JSONValue.Member], bearer: String? = nil) async throws -> String {
            let body = JSONValue.object([.init("client_id", .string(SignInSecretTests.client))] + members).compactText
            return try await post(body: body, bearer: bearer)
        }

        func post(body: String, bearer: String? = nil) async throws -> String {
            let response = try await send(body, to: "/v1/sign-in", bearer ?? self.bearer)
            traces.append(("response", response.body + response.fields.description))
            let answer = try JSONValue(parsing: Array(response.body.utf8))
            return "\(response.status) \((answer["reason"] ?? answer["refresh_token"])?.string ?? "")"
        }

        /// A nonce of siwad's own. The response is no trace: its caller has to know the nonce.
        func issueNonce() async throws -> String {
            let body = JSONValue.object([.init("client_id", .string(SignInSecretTests.client))]).compactText
            let response = try await send(body, to: "/v1/nonces", bearer)
            return try #require(response.member("nonce")?.string, "\(response.body)")
        }

        private func send(_ body: String, to path: String, _ bearer: String) async throws -> WebResponse {
            try await Web.request(
                "POST",
                "http+unix://\(socket.percentEncoded)\(path)",
                body: body,
                type: "application/json",
                headers: ["Authorization": "Bearer \(bearer)"]
            )
        }
    }

    private static func member(_ name: String, _ text: String?) -> JSONValue.Member {
        .init(name, text.map(JSONValue.string) ?? .null)
    }

    /// The members of a request for what a device got.
    private static func members(_ device: JSONValue, nonce: String, session: String? = nil) -> [JSONValue.Member] {
        [
            .init("identity_token", device["identityToken"] ?? .null),
            .init("authorization_code", device["authorizationCode"] ?? .null), member("nonce", nonce),
            .init("session", session.map { .object([member("id", $0)]) } ?? .null),
        ]
    }

    @Test(
        "After sign-ins of every outcome, no dump, log, metric, argument, environment or error has a token, code, nonce or key."
    )
    func nowhere() async throws {
        try await TemporaryDirectory.with { directory in
            try await DaemonFixture.with { fixture in
                let ring = try SealingKeys.newLine(name: "ring")
                let p8 = try P256PrivateKey.generate().pem()
                let bearer = Base64URL.encode(try SecureRandom.bytes(32))
                let digest = SHA256.digest(Array(bearer.utf8).span).map { ($0 < 16 ? "0" : "") + String($0, radix: 16) }
                let key = try directory.write("AuthKey_KEY1234567.p8", p8)
                #expect(chmod(key, 0o600) == 0)
                let settings = try [
                    "SIWAD_APPLICATION_LISTEN": "unix:\(directory.file("application.sock"))",
                    "SIWAD_APPLICATION_TOKENS_FILE": directory.write("tokens", "test \(digest.joined())\n"),
                    "SIWAD_SEALING_KEYS_FILE": directory.write("ring", ring + "\n"),
                    "SIWAD_APPLE_KEYS": "AAAAAAAAAA/KEY1234567=\(key)", "SIWAD_LOG_LEVEL": "trace",
                ]
                for file in ["tokens", "ring"] { #expect(chmod(directory.file(file), 0o600) == 0) }
                let p8Lines = p8.split(separator: "\n").filter { !$0.hasPrefix("--") }.map(String.init)
                try await withApple(fixture, key, directory) { url in
                    let run = Run(
                        fixture: fixture,
                        directory: directory,
                        apple: url,
                        bearer: bearer,
                        secrets: [bearer] + TokenSearch.spellings(ofRing: ring) + p8Lines.prefix(2)
                    )
                    let settings = settings.merging(["SIWAD_APPLE_URL": url]) { $1 }
                    try await fixture.withDaemon(settings) { daemon, addresses async throws in
                        try await signIn(run)
                        try await trade(run)
                        run.traces.append(("/metrics", try await Web.get(addresses.operations + "/metrics").body))
                        run.traces.append(("/readyz", try await Web.get(addresses.operations + "/readyz?verbose").body))
                        let process = try #require(daemon.processID)
                        for file in ["cmdline", "environ"] {
                            let text = try String(contentsOfFile: "/proc/\(process)/\(file)", encoding: .utf8)
                            run.traces.append((file, text))
                        }
                        try await readDatabase(run, ring)
                        daemon.send("TERM")
                        _ = try await daemon.end()
                        #expect(daemon.log.count > 5, "there is a log to look at")
                        run.traces.append(("log", (daemon.log + daemon.output).joined(separator: "\n")))
                    }
                    try await signInByCommand(run, settings)
                    let commands = [
                        ["doctor"], ["config"], ["config", "--json"], ["tokens", "list", "--json"],
                        ["sealing", "status"],
                    ]
                    for command in commands {
                        let result = try await siwad(command, environment: fixture.environment(settings))
                        run.traces.append((command.joined(separator: " "), result.output + result.errors))
                    }
                    try await rotate(run, ring, settings)
                    // The server of all tests writes next to its data.
                    let log = try await fixture.texts("SELECT current_setting('data_directory') || '/../log'")[0]
                    let lines = try #require(FileManager.default.contents(atPath: log))
                    run.traces.append(("PostgreSQL's log", String(decoding: lines, as: UTF8.self)))
                    search(run)
                }
            }
        }
    }

    /// Runs a simulated Apple that verifies client secrets while `body` runs.
    private func withApple(
        _ fixture: DaemonFixture,
        _ clientKey: String,
        _ directory: TemporaryDirectory,
        _ body: (_ url: String) async throws -> Void
    ) async throws {
        let key = try directory.write("key.pem", try fixture.apple.key.pem())
        let apple = DaemonProcess(
            [
                "simulate", "apple", "--key", key, "--listen", "127.0.0.1:0", "--apps", DaemonFixture.apps,
                "--client-key", "AAAAAAAAAA/KEY1234567=\(clientKey)",
            ],
            environment: [:]
        )
        do {
            try await eventually("the simulated Apple") { !apple.output.isEmpty }
            try await body(String(try #require(apple.output.first?.split(separator: " ").first)))
        } catch {
            await apple.kill()
            throw error
        }
        await apple.kill()
    }

    private static func newNonce() -> String {
        Base64URL.encode((0..<24).map { _ in UInt8.random(in: .min ... .max) })
    }

    /// The members of a request for an attempt of its own.
    private func attempt(_ run: Run, session: String? = nil) async throws -> [JSONValue.Member] {
        let nonce = Self.newNonce()
        return try await Self.members(run.device(["nonce": nonce]), nonce: nonce, session: session)
    }

    /// Signs people in with every outcome that a token can leave traces of.
    private func signIn(_ run: Run) async throws {
        let first = try await attempt(run, session: "session-1")
        #expect(try await run.post(first) == "200 stored")
        #expect(try await run.post(first) == "200 stored")
        let replayed = first.filter { $0.name != "session" }
        #expect(try await run.post(replayed) == "422 token-used")
        #expect(try await run.post(first, bearer: Self.newNonce()) == "401 unauthenticated")

        let foreign = try await run.device(["nonce": Self.newNonce()])
        #expect(try await run.post(Self.members(foreign, nonce: Self.newNonce())) == "422 nonce-mismatch")
        let other = try await attempt(run)
        let swapped = other.map {
            $0.name == "authorization_code" ? first.first { $0.name == "authorization_code" } ?? $0 : $0
        }
        #expect(try await run.post(swapped) == "422 code-mismatch")
        let forged = other.map { member in
            guard member.name == "identity_token", let token = member.value.string else { return member }
            return Self.member("identity_token", String(token.dropLast(12)) + "AAAAAAAAAAAA")
        }
        #expect(try await run.post(forged) == "422 bad-signature")
        let truncated = JSONValue.object(first).compactText.dropLast(3)
        #expect(try await run.post(body: String(truncated)) == "400 malformed-request")
        let issued = try await run.issueNonce()
        #expect(try await run.post(Self.members(run.device(["nonce": issued]), nonce: issued)) == "200 stored")
    }

    /// Signs people in with every outcome that a code can leave traces of.
    private func trade(_ run: Run) async throws {
        let nonce = Self.newNonce()
        let alone = try await Self.members(run.device(["nonce": nonce]), nonce: nonce)
        #expect(try await run.post(alone.filter { $0.name != "identity_token" }) == "200 stored")

        try await run.behave(#""cut":true"#)
        #expect(try await run.post(attempt(run)).hasPrefix("200 "))
        try await run.behave(#""status":400,"body":"{\"error\":\"invalid_grant\"}""#)
        #expect(try await run.post(attempt(run)).hasPrefix("200 "))
        try await run.behave(#""status":400,"body":"{\"error\":\"invalid_client\"}""#)
        #expect(try await run.post(attempt(run)) == "200 refused")
        try await run.behave(#""tamper":"sub""#)
        #expect(try await run.post(attempt(run)) == "502 apple-unexpected")

        try await run.behave(#""status":503"#)
        #expect(try await run.post(attempt(run)) == "200 pending")
        try await eventually("the code to be traded in the background") {
            let last = "SELECT refresh FROM siwa.sign_ins ORDER BY sign_in_id DESC LIMIT 1"
            return try await run.fixture.texts(last) == ["stored"]
        }
        try await run.behave(#""status":503,"times":1000"#)
        #expect(try await run.post(attempt(run)) == "200 pending")
    }

    /// Signs in without the daemon, which writes to the terminal of an operator.
    private func signInByCommand(_ run: Run, _ settings: [String: String]) async throws {
        let environment = run.fixture.environment(settings)
        let device = try await attempt(run)
        let nonce = Self.newNonce()
        run.secrets.append(nonce)
        let other = device.map { $0.name == "nonce" ? Self.member("nonce", nonce) : $0 }
        for (members, status) in [(other, 1), (device, 0)] as [([JSONValue.Member], Int32)] {
            let body = JSONValue.object([Self.member("client_id", Self.client)] + members).compactText
            let file = try run.directory.write("request.json", body)
            for options in [[], ["--json"]] {
                // With neither a session nor a key, the same request again is refused.
                let expected = options.isEmpty ? status : 1
                let result = try await siwad(["sign-in", "--request", file] + options, environment: environment)
                #expect(result.status == expected, "\(result.errors)")
                run.traces.append(("siwad sign-in", result.output + result.errors))
            }
        }
    }

    /// Seals with another key what the run has stored.
    private func rotate(_ run: Run, _ ring: String, _ settings: [String: String]) async throws {
        let another = try SealingKeys.newLine(name: "ring2")
        run.secrets += TokenSearch.spellings(ofRing: another)
        let file = try run.directory.write("ring2", "\(another)\n\(ring)\n")
        #expect(chmod(file, 0o600) == 0)
        let rotated = settings.merging(["SIWAD_SEALING_KEYS_FILE": file]) { $1 }
        let command = ["sealing", "rotate", "--note", "yearly"]
        let result = try await siwad(command, environment: run.fixture.environment(rotated))
        #expect(result.status == 0 && result.output == "1 secret sealed with ring2\n", "\(result.errors)")
        run.traces.append(("sealing rotate", result.output + result.errors))
        try await readDatabase(run, another)
    }

    /// Adds a dump, and what the ring opens in it to the secrets.
    private func readDatabase(_ run: Run, _ ring: String) async throws {
        let file = run.directory.file("dump.sql")
        let dump = try await ChildProcess.run(["/usr/bin/pg_dump", "--file=\(file)", run.fixture.conninfo])
        #expect(dump.isSuccess, "\(dump.output)")
        run.traces.append(("dump", try String(contentsOfFile: file, encoding: .utf8)))
        let keys = try SealingKeys(parsing: ring)
        let sealed = try await run.fixture.texts("SELECT convert_from(sealed, 'UTF8') FROM siwa.apple_tokens")
        #expect(!sealed.isEmpty)
        for text in sealed {
            let content = try JSONValue(parsing: keys.open(Array(text.utf8)))
            run.secrets.append(try #require(content["token"]?.string))
        }
    }

    private func search(_ run: Run) {
        #expect(run.traces.contains { $0.place == "dump" && $0.text.contains("apple_tokens") })
        // Text in a column of bytes is hexadecimal in a dump.
        let spellings = run.secrets.flatMap { secret in
            [secret, Array(secret.utf8).map { ($0 < 16 ? "0" : "") + String($0, radix: 16) }.joined()]
        }
        for (place, text) in run.traces {
            let found = TokenSearch.occurrences(of: Set(spellings), in: [text])
            #expect(found == [], "\(place) has a secret")
            // The log of the server has lines of other tests too.
            guard place != "PostgreSQL's log" else { continue }
            #expect(TokenSearch.tokens(in: [text]) == [], "\(place) has something like a token")
        }
    }

    @Test("The search at the end of each test finds nonces and keys, also in a column of bytes.")
    func searched() async throws {
        try await SigningFixture.with { fixture in
            _ = try await fixture.ready("a")
            let device = try await fixture.device()
            #expect(try await fixture.post(device.request(session: "s1"), to: "a").status == 200)
            let ring = try #require(fixture.settings["SIWAD_SEALING_KEYS"])
            let keys = TokenSearch.spellings(ofRing: ring)
            #expect(keys.count == 3 && ring.hasSuffix(keys[0]))
            for secret in keys + [device.nonce] {
                let beginning = [String(secret.prefix(12))]
                #expect(TokenSearch.occurrences(of: [secret], in: ["version 1", "it is \(secret)."]) == beginning)
                func found() async throws -> [String] {
                    try await TokenSearch.tokensInDatabase(fixture.daemons.texts, secrets: [secret])
                }
                #expect(try await found() == [])
                try await fixture.daemons.run("UPDATE siwa.sign_ins SET caller = '\(secret)'")
                #expect(try await found() == beginning)
                try await fixture.daemons.run(
                    """
                    UPDATE siwa.sign_ins SET caller = '';
                    CREATE TABLE siwa.strays AS SELECT '\\x00'::bytea || convert_to('\(secret)', 'UTF8') AS content;
                    """
                )
                #expect(try await found() == beginning)
                try await fixture.daemons.run("DROP TABLE siwa.strays")
            }
        }
    }

    @Test(
        "Another library opens a stored refresh token with the key; it contains account, client and token, and nothing else.",
        .enabled(if: PythonProgram.isAvailable, PythonProgram.missing)
    )
    func storedToken() async throws {
        try await SigningFixture.with { fixture in
            _ = try await fixture.ready("a")
            let answer = try await fixture.post(fixture.device().request(session: "s1"), to: "a")
            #expect(answer.status == 200, "\(answer.body)")
            let sealed = try await fixture.daemons.texts("SELECT convert_from(sealed, 'UTF8') FROM siwa.apple_tokens")
            let key = try #require(fixture.settings["SIWAD_SEALING_KEYS"]?.split(separator: ":").last)
            let script = """
                import base64, sys
                from joserfc import jwe
                from joserfc.jwk import OctKey
                key = OctKey.import_key(base64.b64decode(sys.argv[1]))
                sys.stdout.write(jwe.decrypt_compact(sys.argv[2], key).plaintext.decode())
                """
            let arguments = ["-W", "ignore", "-c", script, String(key), try #require(sealed.first)]
            let opened = try await ChildProcess.run([PythonProgram.interpreter] + arguments)
            #expect(opened.isSuccess, "\(opened.output)")
            let content = try JSONValue(parsing: Array(opened.output.utf8))
            #expect(content.members?.map(\.name) == ["account", "client", "token"])
            #expect(content["account"]?.integer.map { String($0) } == answer.member("account")?["id"]?.string)
            #expect(content["client"]?.string == SigningFixture.client)
            let token = try #require(content["token"]?.string)
            #expect(token.hasPrefix("r") && TokenSearch.tokens(in: [token]).count == 1)
        }
    }
}
