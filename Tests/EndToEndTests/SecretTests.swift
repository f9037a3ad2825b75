import AppleTokens
import AppleSimulator
import FoundationEssentials
import JOSE
import TestSupport
import Testing

@Suite("What must not be seen", .timeLimit(.minutes(10)))
struct SecretTests {
    private static let password = "pa55-of-the-daemon"
    private static let address = "someone.private@privaterelay.appleid.com"

    /// Everything that a run left where others may look.
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

    private func events(_ scene: Scene) -> [SimulatedEvent] {
        var events = ["email-disabled", "email-enabled", "consent-revoked", "account-deleted", "person-promoted"].map {
            scene.event($0)
        }
        events.append(scene.event(app: "com.example.unheard"))
        for index in events.indices {
            events[index].email = Self.address
            events[index].isPrivateEmail = true
        }
        return events
    }

    @Test(
        "Tokens, addresses and passwords are in no log line, metric, answer, error or argument, at any level."
    )
    func nowhere() async throws {
        try await Scene.with { scene in
            let role = "secretive_\(String(UInt64.random(in: 0...UInt64.max), radix: 36))"
            try await scene.run("CREATE ROLE \(role) LOGIN PASSWORD '\(Self.password)' IN ROLE siwad_daemon")
            let spool = try TemporaryDirectory()
            let settings = [
                "SIWAD_DATABASE_URL": "\(scene.conninfo) user=\(role) password=\(Self.password)",
                "SIWAD_SPOOL_DIRECTORY": spool.file("spool"), "SIWAD_LOG_LEVEL": "trace",
            ]
            var traces = Traces()
            var tokens = try events(scene).map { try scene.apple.token(for: $0) }
            let stranger = try SimulatedApple.generate()
            tokens += try events(scene).map { try stranger.token(for: $0) }
            tokens += try events(scene).map {
                try stranger.token(claims: $0.claims(issuer: scene.apple.issuer), header: scene.apple.header)
            }
            tokens.append(try scene.apple.identityToken(sub: "person", app: "com.example.one", issuedAt: 1))

            try await scene.withDaemon(settings) { daemon, addresses async throws in
                func post() async throws {
                    for (number, token) in tokens.enumerated() {
                        let answer = try await Web.post(SimulatedApple.body(token: token), to: addresses.notifications)
                        traces.add("answer \(number)", answer.body + answer.fields.description)
                    }
                }
                try await post()
                try await scene.run("ALTER TABLE siwa.accounts ADD CONSTRAINT no_more CHECK (email IS NULL) NOT VALID")
                try await post()
                try await scene.closeDatabase()
                try await post()
                for path in ["/metrics", "/readyz?verbose", "/livez"] {
                    traces.add(path, try await Web.get(addresses.operations + path).body)
                }
                try await scene.openDatabase()
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
            try await traces.add("errors", errors(scene, settings))
            traces.expectNone(of: [Self.password, Self.address] + tokens.flatMap(Self.telling))
            try await scene.run("DROP ROLE \(role)")
        }
    }

    /// What the commands say that can't reach the database, or may not do what they are to do there.
    private func errors(_ scene: Scene, _ settings: [String: String]) async throws -> String {
        var text = ""
        let unreachable = "postgresql://someone:\(Self.password)@127.0.0.1:1/app"
        for url in [unreachable, unreachable + "?nonsense=1", "password=\(Self.password) host=/nowhere"] {
            for arguments in [["serve"], ["migrate"], ["config"], ["accounts", "list"], ["doctor"]] {
                var environment = scene.environment(settings)
                environment["SIWAD_DATABASE_URL"] = url
                environment["SIWAD_SPOOL_DIRECTORY"] = nil
                let run = try await siwad(arguments, environment: environment)
                text += run.output + run.errors
            }
        }
        let refused = try await siwad(["migrate"], environment: scene.environment(settings))
        return text + refused.output + refused.errors
    }

    /// The parts of a token that would tell it: the claims and the signature.
    private static func telling(_ token: String) -> [String] {
        token.split(separator: ".").dropFirst().map { String($0.prefix(60)) }
    }

    @Test("What Apple signed can forge no line: control characters in names stay within the line that holds them.")
    func injection() async throws {
        let forged = "level=error message=forged"
        let breaks = ["\n", "\r", "\r\n", "\u{0B}", "\u{85}", "\u{2028}", "\u{1B}[2K", "\u{8}"]
        try await Scene.with { scene in
            let daemon = scene.start(["SIWAD_LOG_LEVEL": "trace"])
            let addresses = try await daemon.ready()
            for end in breaks {
                let name = "x\(end)\(forged)"
                for event in [
                    scene.event(app: name), scene.event(name), scene.event(sub: name, id: name + end),
                    scene.event("person-promoted", sub: name),
                ] {
                    #expect(try await Web.post(scene.body(event), to: addresses.notifications).status == 200)
                }
                let header = "{\"alg\":\"RS256\",\"kid\":\(JSONValue.quoted(name))}"
                let token = try scene.apple.token(claims: "{}", header: header)
                #expect(
                    try await Web.post(SimulatedApple.body(token: token), to: addresses.notifications).status == 400
                )
            }
            for line in daemon.log {
                #expect((try? JSONValue(parsing: Array(line.utf8)))?.kind == .object, "\(line)")
            }
            // What operators read shows them as what they are, or not at all.
            for arguments in [["dead-letters", "list"], ["dead-letters", "show", "1"], ["notifications", "list"]] {
                let run = try await siwad(arguments, environment: scene.environment())
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
