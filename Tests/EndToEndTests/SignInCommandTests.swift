import Foundation
import JOSE
import TestSupport
import Testing

@Suite("siwad sign-in, and the settings of sign-ins", .timeLimit(.minutes(10)))
struct SignInCommandTests {
    @Test("The command signs in from parts in its own process, and from a request at a daemon.")
    func signIn() async throws {
        try await SigningFixture.with { fixture in
            let environment = fixture.daemons.environment(fixture.settings)
            let ada = try await fixture.device()
            let token = try fixture.directory.write("token", ada.token + "\n")
            let code = try fixture.directory.write("code", ada.code)
            let parts = [
                "sign-in", "--client-id", SigningFixture.client, "--token", token, "--code", "@\(code)", "--nonce",
                ada.nonce,
                "--session", "s1", "--expires-in", "30d",
            ]
            let run = try await siwad(parts, environment: environment)
            #expect(run.status == 0, "\(run.errors)")
            #expect(run.output.contains("refresh token  stored") && run.output.contains("session        s1"))
            let again = try await siwad(parts + ["--json"], environment: environment)
            let answer = try JSONValue(parsing: Array((again.lines.first ?? "").utf8))
            #expect(answer["repeated"] == .boolean(true) && answer["session"]?["expires_at"]?.string != nil)
            let device = try fixture.directory.write("device.json", #"{"identityToken":"\#(ada.token)"}"#)
            let same = try await siwad(parts.map { $0 == token ? device : $0 }, environment: environment)
            #expect(same.status == 0 && same.output.contains(", repeated"), "\(same.output)\(same.errors)")

            _ = try await fixture.ready("a")
            let bob = try await fixture.device("bob").request(session: "s2")
            let request = try fixture.directory.write("request.json", bob)
            let remote = ["sign-in", "--request", request, "--to", "unix:\(fixture.socket("a"))", "--json"]
            let sent = try await siwad(remote)
            #expect(sent.status == 0, "\(sent.errors)")
            #expect(try JSONValue(parsing: Array(sent.output.utf8))["refresh_token"]?.string == "stored")
            #expect(
                try await fixture.daemons.texts("SELECT session_id FROM siwa.account_sessions ORDER BY 1") == [
                    "s1", "s2",
                ]
            )
        }
    }

    @Test("The command and siwad doctor reach a socket whose path has characters with a meaning in URLs.")
    func path() async throws {
        try await SigningFixture.with { fixture in
            let directory = fixture.directory.file("a@b:c#d?e f")
            try FileManager.default.createDirectory(atPath: directory, withIntermediateDirectories: false)
            let address = "unix:\(directory)/a.sock"
            let listen = ["SIWAD_APPLICATION_LISTEN": address]
            _ = try await fixture.ready("a", listen)
            let request = try fixture.directory.write("request.json", try await fixture.device().request(session: "s1"))
            let sent = try await siwad(["sign-in", "--request", request, "--to", address])
            #expect(sent.status == 0, "\(sent.errors)")
            let environment = fixture.daemons.environment(fixture.settings.merging(listen) { $1 })
            let doctor = try await siwad(["doctor", "--json"], environment: environment)
            let prefix = #"{"check":"application","#
            let finding = try #require(doctor.lines.first { $0.hasPrefix(prefix) }, "\(doctor.output)")
            #expect(try JSONValue(parsing: Array(finding.utf8))["status"] == .string("pass"), "\(finding)")
        }
    }

    @Test("A refusal ends with 1 and its reason, and with 69 if the request may be repeated.")
    func refused() async throws {
        try await SigningFixture.with { fixture in
            let environment = fixture.daemons.environment(fixture.settings)
            let request = try fixture.directory.write("request.json", try await fixture.device().request(session: "s1"))
            let command = ["sign-in", "--request", request]
            let strict = environment.merging(["SIWAD_NONCE": "issued"]) { $1 }
            let refused = try await siwad(command, environment: strict)
            #expect(refused.status == 1 && refused.errors.contains("nonce-mismatch: "), "\(refused.errors)")
            let json = try await siwad(command + ["--json"], environment: strict)
            #expect(json.status == 1 && json.output.contains("\"action\":\"refuse\""))
            try await fixture.daemons.closeDatabase()
            let away = try await siwad(command, environment: environment)
            #expect(away.status == 69 && away.errors.contains("check that PostgreSQL runs there"), "\(away.errors)")
            try await fixture.daemons.openDatabase()
            let nobody = try await siwad(command + ["--to", "unix:\(fixture.socket("z"))"])
            #expect(nobody.status == 69, "\(nobody.errors)")
        }
    }

    @Test("Nothing is sent to an address in clear, or with a file that is no token, and another server is recognised.")
    func addresses() async throws {
        try await TemporaryDirectory.with { directory in
            let request = try directory.write("request.json", "{}")
            let command = ["sign-in", "--request", request, "--to"]
            for (address, cause) in [
                ("http://192.0.2.1:21", "http: is for loopback addresses only"), ("http://", "its host is not a name"),
                ("unix:here", "write unix:/path"), ("here", "it is not a URL"),
                (".siwad/application.sock", "it is not a URL: write unix:/path"),
            ] {
                let run = try await siwad(command + [address])
                #expect(
                    run.status == 64 && run.errors.contains("--to: ") && run.errors.contains(cause),
                    "\(run.errors)"
                )
            }
            let answer = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
            try await WebhookReceiver.with(try DaemonFixture.secret, answering: { _, _ in .bytes(answer) }) { server in
                let bearer = try directory.write("bearer", "token\nshop 0a\n")
                let refused = try await siwad(command + [server.url, "--bearer", bearer])
                #expect(refused.status == 1 && refused.errors.contains("has more than a token"), "\(refused.errors)")
                #expect(server.connections == 0)
                let other = try await siwad(command + [server.url])
                let cause = "is not siwad's application endpoint: it answers 200"
                #expect(other.status == 1 && other.errors.contains(cause), "\(other.errors)")
            }
        }
    }

    @Test("A database role that may not sign people in is named, and ends the command with 1.")
    func missingRight() async throws {
        try await SigningFixture.with { fixture in
            let name = "reader_\(String(UInt64.random(in: 0...UInt64.max), radix: 36))"
            try await fixture.daemons.run("CREATE ROLE \(name) LOGIN IN ROLE siwad_reader")
            var environment = fixture.daemons.environment(fixture.settings)
            environment["SIWAD_DATABASE_URL"] = "\(fixture.daemons.conninfo) user=\(name)"
            let request = try fixture.directory.write("request.json", try await fixture.device().request(session: "s1"))
            let run = try await siwad(["sign-in", "--request", request], environment: environment)
            try await fixture.daemons.run("DROP ROLE \(name)")
            #expect(run.status == 1 && run.errors.contains("permission denied"), "\(run.errors)")
            #expect(run.errors.contains("connect as a member of the role siwad_daemon"), "\(run.errors)")
        }
    }

    @Test("A daemon whose settings of sign-ins don't fit together, or whose key can't be used, ends with 78.")
    func wrongSettings() async throws {
        try await TemporaryDirectory.with { directory in
            let sealing = try SealingKeys.newLine(name: "k1")
            let good = try await SigningFixture.key(in: directory)
            let open = try await SigningFixture.key("open.p8", in: directory)
            try FileManager.default.setAttributes([.posixPermissions: 0o644], ofItemAtPath: open)
            let curve = ["-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-384"]
            let other = try await SigningFixture.key("p384.p8", curve, in: directory)
            let p256 = ["-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256"]
            let locked = try await SigningFixture.key(
                "locked.p8",
                p256 + ["-aes256", "-pass", "pass:x"],
                in: directory
            )
            let renamed = try await SigningFixture.key("AuthKey_OTHERKEY00.p8", in: directory)
            func keys(_ file: String) -> [String: String] {
                ["SIWAD_APPLE_KEYS": "AAAAAAAAAA/KEY1234567=\(file)", "SIWAD_SEALING_KEYS": sealing]
            }
            let cases: [([String: String], String)] = [
                (["SIWAD_APPLE_KEYS": "AAAAAAAAAA/KEY1234567=\(good)"], "SIWAD_SEALING_KEYS"),
                (keys(open), "chmod 600"), (keys(other), "P-256"), (keys(locked), "encrypted"),
                (keys(renamed), "another key"), (keys(directory.file("none.p8")), "none.p8"),
                (["SIWAD_CODE_EXCHANGE": "required"], "SIWAD_APPLE_KEYS"),
                (["SIWAD_NONCE": "issued"], "SIWAD_SEALING_KEYS"),
                (["SIWAD_APPLICATION_LISTEN": "127.0.0.1:0"], "SIWAD_APPLICATION_TOKENS"),
            ]
            for (settings, words) in cases {
                let listen = ["SIWAD_APPLICATION_LISTEN": "unix:\(directory.file("a.sock"))"]
                var environment = ["SIWAD_DATABASE_URL": "postgres://localhost/none", "SIWAD_APPS": DaemonFixture.apps]
                environment.merge(listen.merging(settings) { $1 }) { $1 }
                let run = try await siwad(["serve"], environment: environment)
                #expect(run.status == 78 && run.errors.contains(words), "\(words): \(run.errors)")
            }
        }
    }

    @Test("SIGHUP replaces the tokens of callers and the policies.")
    func reload() async throws {
        try await SigningFixture.with { fixture in
            func settings(_ token: String, _ nonce: String) -> String {
                let digest = SHA256.digest(Array(token.utf8).span).map { ($0 < 16 ? "0" : "") + String($0, radix: 16) }
                return "application_tokens: \"shop \(digest.joined())\"\nnonce: \(nonce)\n"
            }
            let file = try fixture.directory.write("siwad.yaml", settings("one", "issued"))
            let daemon = fixture.start("a", arguments: ["serve", "--config", file])
            _ = try await daemon.ready()
            let request = try await fixture.device().request(session: "s1")
            #expect(try await fixture.post(request, to: "a", bearer: "two").status == 401)
            #expect(try await fixture.post(request, to: "a", bearer: "one").reason == "nonce-mismatch")
            _ = try fixture.directory.write("siwad.yaml", settings("two", "required"))
            daemon.send("HUP")
            try await eventually("the reload") { daemon.log.contains { $0.contains("configuration re-read") } }
            #expect(try await fixture.post(request, to: "a", bearer: "one").status == 401)
            let answer = try await fixture.post(request, to: "a", bearer: "two")
            #expect(answer.status == 200 && answer.member("refresh_token")?.string == "stored", "\(answer.body)")
            #expect(try await fixture.daemons.texts("SELECT caller FROM siwa.sign_ins") == ["shop"])
            #expect(!daemon.log.contains { $0.contains("c_hash") || $0.contains("eyJ") })
        }
    }

    @Test("After SIGHUP, the key in the file of Apple's signs, and the first sealing key seals the next refresh token.")
    func reloadOfKeys() async throws {
        try await TemporaryDirectory.with { directory in
            let key = try await SigningFixture.key("new.p8", in: directory)
            // Apple does not know the key that the daemon starts with.
            let options = ["--apps", DaemonFixture.apps, "--client-key", "AAAAAAAAAA/KEY1234567=\(key)"]
            try await SigningFixture.with(apple: options) { fixture in
                let first = try #require(fixture.settings["SIWAD_SEALING_KEYS"])
                func ring(_ lines: String...) -> String { "sealing_keys:\n" + lines.map { "- \($0)\n" }.joined() }
                let file = try fixture.directory.write("siwad.yaml", ring(first))
                let daemon = fixture.start("a", ["SIWAD_SEALING_KEYS": ""], arguments: ["serve", "--config", file])
                _ = try await daemon.ready()
                let before = try await fixture.post(fixture.device().request(session: "s1"), to: "a")
                #expect(before.status == 200 && before.member("refresh_token")?.string == "refused", "\(before.body)")
                #expect(before.member("refresh_token_error")?.string == "invalid_client", "\(before.body)")

                let replaced = fixture.directory.file("AuthKey_KEY1234567.p8")
                try FileManager.default.removeItem(atPath: replaced)
                try FileManager.default.moveItem(atPath: key, toPath: replaced)
                _ = try fixture.directory.write("siwad.yaml", ring(try SealingKeys.newLine(name: "k2"), first))
                daemon.send("HUP")
                try await eventually("the reload") { daemon.log.contains { $0.contains("configuration re-read") } }
                let after = try await fixture.post(fixture.device().request(session: "s2"), to: "a")
                #expect(after.status == 200 && after.member("refresh_token")?.string == "stored", "\(after.body)")
                #expect(try await fixture.daemons.texts("SELECT key_name FROM siwa.apple_tokens") == ["k2"])
            }
        }
    }

    @Test(
        "A reload without the address of the endpoint, which stays open until a restart, changes its policy all the same."
    )
    func reloadWithoutEndpoint() async throws {
        try await SigningFixture.with { fixture in
            let listen = "application_listen: unix:\(fixture.socket("a"))\n"
            let file = try fixture.directory.write("siwad.yaml", listen + "nonce: issued\n")
            let unset = ["SIWAD_APPLICATION_LISTEN": "", "SIWAD_APPLE_KEYS": ""]
            let daemon = fixture.start("a", unset, arguments: ["serve", "--config", file])
            _ = try await daemon.ready()
            let request = try await fixture.device().request(session: "s1", code: false)
            #expect(try await fixture.post(request, to: "a").reason == "nonce-mismatch")
            _ = try fixture.directory.write("siwad.yaml", "nonce: required\n")
            daemon.send("HUP")
            try await eventually("the reload") {
                daemon.log.contains { $0.contains("take effect with a restart") && $0.contains("application_listen") }
            }
            #expect(try await fixture.post(request, to: "a").status == 200)
        }
    }

    @Test("The doctor signs a client secret for each client, and with --live asks Apple about each.")
    func doctor() async throws {
        try await SigningFixture.with { fixture in
            let environment = fixture.daemons.environment(fixture.settings)
            let run = try await siwad(["doctor", "--live"], environment: environment)
            #expect(run.output.contains("✓ client-secret"), "\(run.output)")
            #expect(run.lines.count { $0.contains("apple-client") && $0.hasPrefix("✓") } == 3, "\(run.output)")
            try await fixture.control("behave", #"{"status":400,"body":"{\"error\":\"invalid_client\"}","times":3}"#)
            let refused = try await siwad(["doctor", "--live"], environment: environment)
            #expect(refused.lines.count { $0.contains("apple-client") && $0.hasPrefix("✗") } == 3, "\(refused.output)")
        }
    }
}
