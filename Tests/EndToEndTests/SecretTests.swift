import AppleTokens
import AppleSimulator
import FoundationEssentials
import JOSE
import TestSupport
import Testing

@Suite("Secrets in output", .timeLimit(.minutes(10)))
struct SecretTests {
    private static let password = "pa55-of-the-daemon"
    private static let address = "someone.private@privaterelay.appleid.com"

    /// Everything that a run leaves in places that others can read.
    private struct Traces {
        private(set) var texts: [(place: String, text: String)] = []

        mutating func add(_ place: String, _ text: String) { texts.append((place, text)) }

        func expectNone(of secrets: [String]) {
            for secret in secrets {
                for (place, text) in texts {
                    #expect(!text.contains(secret), "\(secret.prefix(24))… in \(place)")
                }
            }
        }
    }

    private func events(_ fixture: DaemonFixture) -> [SimulatedEvent] {
        var events = ["email-disabled", "email-enabled", "consent-revoked", "account-deleted", "person-promoted"].map {
            fixture.event($0)
        }
        events.append(fixture.event(app: "com.example.unheard"))
        for index in events.indices {
            events[index].email = Self.address
            events[index].isPrivateEmail = true
        }
        return events
    }

    @Test("It leaves no core dump, even if the limit that it inherits allows one.")
    func coreDump() async throws {
        try await DaemonFixture.with { fixture in
            let allowing = ["/bin/sh", "-c", "ulimit -S -c \"$(ulimit -H -c)\"; exec \"$@\"", "sh"]
            let daemon = fixture.start(under: allowing)
            _ = try await daemon.ready()
            let limits = try String(contentsOfFile: "/proc/\(#require(daemon.processID))/limits", encoding: .utf8)
            #expect(limits.contains(/Max core file size +0\b/), "\(limits)")
        }
    }

    @Test(
        "No log line, metric, response, error or argument contains a token, address or password, at any log level."
    )
    func nowhere() async throws {
        try await DaemonFixture.with { fixture in
            let role = "secretive_\(String(UInt64.random(in: 0...UInt64.max), radix: 36))"
            try await fixture.run("CREATE ROLE \(role) LOGIN PASSWORD '\(Self.password)' IN ROLE siwad_daemon")
            let spool = try TemporaryDirectory()
            let settings = [
                "SIWAD_DATABASE_URL": "\(fixture.conninfo) user=\(role) password=\(Self.password)",
                "SIWAD_SPOOL_DIRECTORY": spool.file("spool"), "SIWAD_LOG_LEVEL": "trace",
            ]
            var traces = Traces()
            var tokens = try events(fixture).map { try fixture.apple.token(for: $0) }
            let stranger = try SimulatedApple.generate()
            tokens += try events(fixture).map { try stranger.token(for: $0) }
            tokens += try events(fixture).map {
                try stranger.token(claims: $0.claims(issuer: fixture.apple.issuer), header: fixture.apple.header)
            }
            tokens.append(try fixture.apple.identityToken(sub: "person", app: "com.example.one", issuedAt: 1))

            try await fixture.withDaemon(settings) { daemon, addresses async throws in
                func post() async throws {
                    for (number, token) in tokens.enumerated() {
                        let response = try await Web.post(
                            SimulatedApple.body(token: token),
                            to: addresses.notifications
                        )
                        traces.add("response \(number)", response.body + response.fields.description)
                    }
                }
                try await post()
                try await fixture.run(
                    "ALTER TABLE siwa.accounts ADD CONSTRAINT no_more CHECK (email IS NULL) NOT VALID"
                )
                try await post()
                try await fixture.closeDatabase()
                try await post()
                for path in ["/metrics", "/readyz?verbose", "/livez"] {
                    traces.add(path, try await Web.get(addresses.operations + path).body)
                }
                try await fixture.openDatabase()
                try await eventually("the spool to be emptied") {
                    try await Web.get(addresses.operations + "/metrics").body.contains("siwad_spool_bytes 0")
                }
                traces.add("/metrics", try await Web.get(addresses.operations + "/metrics").body)
                let process = try #require(daemon.processID)
                traces.add("arguments", try String(contentsOfFile: "/proc/\(process)/cmdline", encoding: .utf8))
                daemon.send("TERM")
                _ = try await daemon.end()
                traces.add("log", daemon.log.joined(separator: "\n"))
                traces.add("output", daemon.output.joined(separator: "\n"))
                #expect(daemon.log.count > 5, "there is a log to look at")
            }
            try await traces.add("errors", errors(fixture, settings))
            traces.expectNone(of: [Self.password, Self.address] + tokens.flatMap(Self.telling))
            try await fixture.run("DROP ROLE \(role)")
        }
    }

    /// The output of commands that can't reach the database, or lack a right there.
    private func errors(_ fixture: DaemonFixture, _ settings: [String: String]) async throws -> String {
        var text = ""
        let unreachable = "postgresql://someone:\(Self.password)@127.0.0.1:1/app"
        for url in [unreachable, unreachable + "?nonsense=1", "password=\(Self.password) host=/nowhere"] {
            for arguments in [["serve"], ["migrate"], ["config"], ["accounts", "list"], ["doctor"]] {
                var environment = fixture.environment(settings)
                environment["SIWAD_DATABASE_URL"] = url
                environment["SIWAD_SPOOL_DIRECTORY"] = nil
                let run = try await siwad(arguments, environment: environment)
                text += run.output + run.errors
            }
        }
        let refused = try await siwad(["migrate"], environment: fixture.environment(settings))
        return text + refused.output + refused.errors
    }

    /// The parts of a token that must not appear: the claims and the signature.
    private static func telling(_ token: String) -> [String] {
        token.split(separator: ".").dropFirst().map { String($0.prefix(60)) }
    }

    @Test("Control characters in signed names can't forge a line of output.")
    func injection() async throws {
        let forged = "level=error message=forged"
        let breaks = ["\n", "\r", "\r\n", "\u{0B}", "\u{85}", "\u{2028}", "\u{1B}[2K", "\u{8}"]
        try await DaemonFixture.with { fixture in
            let daemon = fixture.start(["SIWAD_LOG_LEVEL": "trace"])
            let addresses = try await daemon.ready()
            for end in breaks {
                let name = "x\(end)\(forged)"
                for event in [
                    fixture.event(app: name), fixture.event(name), fixture.event(sub: name, id: name + end),
                    fixture.event("person-promoted", sub: name),
                ] {
                    #expect(try await Web.post(fixture.body(event), to: addresses.notifications).status == 200)
                }
                let header = "{\"alg\":\"RS256\",\"kid\":\(JSONValue.quoted(name))}"
                let token = try fixture.apple.token(claims: "{}", header: header)
                #expect(
                    try await Web.post(SimulatedApple.body(token: token), to: addresses.notifications).status == 400
                )
            }
            for line in daemon.log {
                #expect((try? JSONValue(parsing: Array(line.utf8)))?.kind == .object, "\(line)")
            }
            // The pages for operators show control characters escaped, or not at all.
            for arguments in [["dead-letters", "list"], ["dead-letters", "show", "1"], ["notifications", "list"]] {
                let run = try await siwad(arguments, environment: fixture.environment())
                #expect(run.status == 0)
                let lines = run.output.split(separator: "\n", omittingEmptySubsequences: false)
                #expect(!lines.contains { $0.hasPrefix(forged) }, "\(arguments)")
                let controls = run.output.unicodeScalars.filter {
                    $0 != "\n" && $0.properties.generalCategory == .control
                }
                #expect(controls.isEmpty, "\(arguments)")
            }
        }
    }
}
