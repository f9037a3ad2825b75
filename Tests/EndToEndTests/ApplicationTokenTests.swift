import Glibc
import JOSE
import TestSupport
import Testing

@Suite("siwad application-token", .timeLimit(.minutes(5)))
struct ApplicationTokenTests {
    @Test("It prints another token each time, of 256 bits, and a line with its SHA-256 that is accepted as a setting.")
    func tokens() async throws {
        var tokens: Set<String> = []
        for clients in [[], ["com.example.app"], ["com.example.app", "com.example.web"]] {
            let run = try await siwad(["application-token", "shop"] + clients.flatMap { ["--client-id", $0] })
            #expect(run.status == 0 && run.lines.count == 2, "\(run.errors)")
            let token = String(try #require(run.lines.first))
            tokens.insert(token)
            #expect(try Base64URL.decode(token).count == 32)
            let digest = SHA256.digest(Array(token.utf8).span).map { ($0 < 16 ? "0" : "") + String($0, radix: 16) }
            let line = String(try #require(run.lines.last))
            #expect(line == (["shop", digest.joined()] + clients).joined(separator: " "))
            #expect(run.errors.contains("SIWAD_APPLICATION_TOKENS") && !run.errors.contains(token))
            let config = try await siwad(["config"], environment: ["SIWAD_APPLICATION_TOKENS": line])
            #expect(config.status == 0)
            #expect(!config.output.contains(digest.joined()))
        }
        #expect(tokens.count == 3)
    }

    @Test("Names and client ids that a line can't hold are refused.")
    func usage() async throws {
        for arguments in [[], ["a b"], ["a:b"], [""], ["shop", "--client-id", "a b"], ["shop", "--client-id", ""]] {
            #expect(try await siwad(["application-token"] + arguments).status == 64, "\(arguments)")
        }
    }
}

@Suite("The start of the application endpoint", .timeLimit(.minutes(5)))
struct ApplicationStartTests {
    private static let token = "SIWAD_APPLICATION_TOKENS"

    @Test("A daemon that would serve callers over TCP without tokens, or beyond loopback without TLS, does not start.")
    func exposed() async throws {
        let line = "shop \(String(repeating: "ab", count: 32))"
        try await DaemonFixture.with { fixture in
            for (settings, name) in [
                (["SIWAD_APPLICATION_LISTEN": "127.0.0.1:0"], Self.token),
                (["SIWAD_APPLICATION_LISTEN": "[::1]:0"], Self.token),
                (["SIWAD_APPLICATION_LISTEN": "0.0.0.0:0", Self.token: line], "SIWAD_APPLICATION_TLS_CERTIFICATE"),
            ] {
                let run = try await siwad(["serve"], environment: fixture.environment(settings))
                #expect(run.status == 78 && run.errors.contains(name), "\(settings): \(run.errors)")
            }
        }
    }

    @Test("Beyond loopback, a caller with its token is served over TLS, and nothing is answered in clear.")
    func beyondLoopback() async throws {
        let digest = SHA256.digest(Array("token".utf8).span).map { ($0 < 16 ? "0" : "") + String($0, radix: 16) }
        try await DaemonFixture.with { fixture in
            try await TemporaryDirectory.with { directory in
                try await OpenSSL.makeCertificate("ec", in: directory)
                let certificate = directory.file("certificate.pem")
                let daemon = fixture.start([
                    "SIWAD_APPLICATION_LISTEN": "0.0.0.0:0", Self.token: "shop \(digest.joined())",
                    "SIWAD_APPLICATION_TLS_CERTIFICATE": certificate,
                    "SIWAD_APPLICATION_TLS_KEY": directory.file("key.pem"),
                ])
                _ = try await daemon.ready()
                let opening = try #require(daemon.log.first { $0.contains("application endpoint is open") })
                let address = try #require(try JSONValue(parsing: Array(opening.utf8))["address"]?.string)
                let port = try #require(address.split(separator: ":").last.flatMap { Int($0) }, "\(address)")
                let request = "GET /v1/openapi.json HTTP/1.1\r\nHost: localhost\r\n"
                let bearer = "Authorization: Bearer token\r\n"
                for (fields, status) in [(bearer, 200), ("", 401)] {
                    let caller = try await RawClient.connect(to: port, on: Web.eventLoops, trusting: certificate)
                    try await caller.send(request + fields + "\r\n")
                    #expect(try await caller.response().status == status)
                    try await caller.disconnect()
                }
                let stranger = try await RawClient.connect(to: port, on: Web.eventLoops)
                try await stranger.send(request + bearer + "\r\n")
                let clear = await stranger.rest()
                #expect(!clear.contains("HTTP/"), "\(clear)")
            }
        }
    }

    @Test("A reload that takes the tokens from an endpoint that still listens on TCP changes nothing, and says so.")
    func exposedByReload() async throws {
        let tokens = "application_tokens: shop \(String(repeating: "ab", count: 32))\n"
        try await DaemonFixture.with { fixture in
            try await TemporaryDirectory.with { directory in
                let file = try directory.write("siwad.yaml", "application_listen: 127.0.0.1:0\n" + tokens)
                let daemon = fixture.start(arguments: ["serve", "--config", file])
                _ = try await daemon.ready()
                let opening = try #require(daemon.log.first { $0.contains("application endpoint is open") })
                let address = try JSONValue(parsing: Array(opening.utf8))["address"]?.string ?? ""
                for (attempt, text) in ["", "application_listen: unix:\(directory.file("a.sock"))\n"].enumerated() {
                    _ = try directory.write("siwad.yaml", text + "log_level: debug\n")
                    daemon.send("HUP")
                    try await eventually("the refusal of the reload") {
                        daemon.log.count { $0.contains("was not re-read") } == attempt + 1
                    }
                    let refusal = daemon.log.last ?? ""
                    #expect(refusal.contains("SIWAD_APPLICATION_TOKENS: needed"), "\(refusal)")
                    #expect(try await Web.get("http://\(address)/v1/sessions/x").status == 401)
                }
            }
        }
    }

    @Test("A second daemon with the same socket ends with the reason, and after kill -9 the next one takes it over.")
    func sharedSocket() async throws {
        try await DaemonFixture.with { fixture in
            try await TemporaryDirectory.with { directory in
                let path = directory.file("a.sock")
                let settings = ["SIWAD_APPLICATION_LISTEN": "unix:\(path)"]
                let first = fixture.start(settings)
                _ = try await first.ready()
                let second = fixture.start(settings)
                #expect(try await second.end() == 1)
                #expect(second.log.last?.contains("another process answers there") == true, "\(second.log)")
                #expect(first.status == nil && access(path, W_OK) == 0)
                await first.kill()
                #expect(access(path, W_OK) == 0)
                let third = fixture.start(settings)
                _ = try await third.ready()
                third.send("TERM")
                #expect(try await third.end() == 0)
                let left = try directory.names
                #expect(left == [])
            }
        }
    }

    @Test("The socket gets the permissions of SIWAD_APPLICATION_SOCKET_MODE; without it, owner and group may connect.")
    func socketMode() async throws {
        try await DaemonFixture.with { fixture in
            try await TemporaryDirectory.with { directory in
                let modes: [(setting: String, mode: mode_t)] = [("", 0o660), ("0600", 0o600), ("0666", 0o666)]
                for (setting, mode) in modes {
                    let path = directory.file("a\(setting).sock")
                    let settings = [
                        "SIWAD_APPLICATION_LISTEN": "unix:\(path)", "SIWAD_APPLICATION_SOCKET_MODE": setting,
                    ]
                    try await fixture.withDaemon(settings) { _, _ in
                        var status = stat()
                        let result = lstat(path, &status)
                        #expect(result == 0 && status.st_mode & S_IFMT == S_IFSOCK, "\(setting)")
                        let found = status.st_mode & 0o7777
                        #expect(found == mode, "\(setting): \(String(found, radix: 8))")
                    }
                }
            }
        }
    }
}

@Suite("siwad doctor and the application endpoint", .timeLimit(.minutes(5)))
struct ApplicationDoctorTests {
    private func finding(_ settings: [String: String], _ fixture: DaemonFixture) async throws -> String {
        let run = try await siwad(["doctor"], environment: fixture.environment(settings))
        return run.lines.first { $0.contains(" application ") }.map(String.init) ?? "none"
    }

    @Test("It checks the socket, its permissions, and that siwad answers there.")
    func socket() async throws {
        try await DaemonFixture.with { fixture in
            try await TemporaryDirectory.with { directory in
                let path = directory.file("a.sock")
                let settings = ["SIWAD_APPLICATION_LISTEN": "unix:\(path)"]
                #expect(try await finding([:], fixture) == "none")
                #expect(try await finding(settings, fixture).contains("\(path): No such file or directory"))
                try await fixture.withDaemon(settings) { _, _ in
                    try await eventually("the application endpoint") { access(path, W_OK) == 0 }
                    let passed = try await finding(settings, fixture)
                    #expect(passed.hasPrefix("✓ application") && passed.contains("need no token"), "\(passed)")
                    let other = settings.merging(["SIWAD_APPLICATION_SOCKET_MODE": "0600"]) { $1 }
                    #expect(
                        try await finding(other, fixture).contains("0660, and SIWAD_APPLICATION_SOCKET_MODE is 0600")
                    )
                    #expect(chmod(path, 0o666) == 0)
                    #expect(try await finding(settings, fixture).hasPrefix("⚠ application"))
                }
                // The daemon was killed, so its socket is still there.
                #expect(chmod(path, 0o660) == 0)
                let stale = try await finding(settings, fixture)
                #expect(stale.hasPrefix("✗ application") && stale.contains("nothing answers at unix:"), "\(stale)")
            }
        }
    }
}
