import AppleSimulator
import FoundationEssentials
import Glibc
import JOSE
import TestSupport
import Testing

@Suite("The command line", .timeLimit(.minutes(10)))
struct CommandLineTests {
    /// The names under SUBCOMMANDS of a help text.
    private func subcommands(_ help: String) -> [String] {
        let lines = help.split(separator: "\n", omittingEmptySubsequences: false)
        guard let start = lines.firstIndex(of: "SUBCOMMANDS:") else { return [] }
        return lines[(start + 1)...].prefix { !$0.isEmpty }.compactMap { line in
            guard line.hasPrefix("  "), !line.hasPrefix("   ") else { return nil }
            return line.split(separator: " ").first.map(String.init)
        }
    }

    /// Whether the lines form a table whose columns begin at the same position in all lines, after two blanks.
    private func isAligned(_ lines: some Sequence<Substring>) -> Bool {
        func isAfterGap(_ place: Int, in line: [Character]) -> Bool {
            place >= 2 && place < line.count && line[place - 1] == " " && line[place - 2] == " "
        }
        let lines = lines.map { Array($0) }
        guard let header = lines.first, lines.count > 1 else { return false }
        let places = header.indices.filter { header[$0] != " " && isAfterGap($0, in: header) }
        return places.count > 1 && lines.allSatisfy { line in places.allSatisfy { isAfterGap($0, in: line) } }
    }

    @Test("--help of every command prints an example and ends with 0.")
    func help() async throws {
        var waiting: [[String]] = [[]]
        var seen: [String] = []
        while let command = waiting.popLast() {
            let name = (["siwad"] + command).joined(separator: " ")
            let help = try await siwad(command + ["--help"])
            #expect(help.status == 0, "\(name)")
            #expect(help.errors.isEmpty, "\(name)")
            // The example names the command.
            let example = help.output.firstRange(of: "Example").map { help.output[$0.upperBound...] } ?? ""
            #expect(example.contains("siwad \(command.first ?? "")"), "\(name) has no example")
            let children = subcommands(help.output)
            waiting += children.map { command + [$0] }
            if children.isEmpty {
                seen.append(command.joined(separator: " "))
                #expect(help.output.contains("--config"), "\(name)")
                #expect(help.output.contains("--log-level"), "\(name)")
            }
        }
        let promised = [
            "serve", "dev", "migrate up", "migrate status", "migrate sql", "notifications list", "notifications show",
            "accounts list", "accounts show", "accounts history", "sessions list", "sessions show", "sessions end",
            "audit list", "audit show", "sealing new-key", "sealing status", "sealing rotate", "client-secret",
            "tokens list", "tokens show", "sign-in",
            "simulate keys",
            "simulate serve", "simulate token", "simulate send", "verify",
            "config",
        ]
        for command in promised { #expect(seen.contains(command), "\(command) is missing") }
    }

    @Test("Every listing prints one JSON object per line with --json, and plain aligned text in a pipe without it.")
    func json() async throws {
        try await DaemonFixture.withDaemon { fixture, _, addresses in
            try await fixture.run(
                """
                SELECT siwa.record_sign_in('com.example.one', 'person', 'a@privaterelay.appleid.com', true, now());
                SELECT siwa.open_session('com.example.one', 'person', 'one', now());
                SELECT siwa.open_session('com.example.one', 'person', 'two', now());
                """
            )
            for _ in 0..<2 {
                #expect(try await Web.post(fixture.body(fixture.event()), to: addresses.notifications).status == 200)
            }
            let commands = [
                ["accounts", "list"], ["accounts", "show", "person"], ["accounts", "history", "person"],
                ["sessions", "list"], ["notifications", "list"], ["migrate", "status"], ["config"],
            ]
            for command in commands {
                let name = command.joined(separator: " ")
                let result = try await siwad(command + ["--json"], environment: fixture.environment())
                #expect(result.status == 0, "\(name): \(result.errors)")
                #expect(!result.lines.isEmpty, "\(name)")
                for line in result.lines {
                    let value = try JSONValue(parsing: Array(line.utf8))
                    #expect(value.kind == .object, "\(name): \(line)")
                }
                let plain = try await siwad(command, environment: fixture.environment())
                #expect(plain.status == 0, "\(name): \(plain.errors)")
                #expect(!plain.output.contains("\u{1b}"), "\(name) has colours in a pipe")
                switch command {
                case ["config"]:
                    let settings = plain.lines.filter { $0.hasPrefix("SIWAD_") }
                    let margins = settings.map { line in
                        line.count - line.drop { $0 != " " }.drop { $0 == " " }.count
                    }
                    #expect(settings.count > 1 && Set(margins).count == 1, "\(plain.output)")
                case ["accounts", "show", "person"]:
                    for title in ["STATES", "SET BY", "SESSIONS: 2 live of 2", "HISTORY"] {
                        let table = plain.lines.drop { $0 != title }.dropFirst().prefix { $0.hasPrefix("  ") }
                        #expect(isAligned(table), "\(title): \(plain.output)")
                    }
                default:
                    #expect(isAligned(plain.lines), "\(plain.output)")
                }
            }
            let limited = try await siwad(
                ["notifications", "list", "--json", "--limit", "1"],
                environment: fixture.environment()
            )
            #expect(limited.lines.count == 1)
        }
    }

    @Test("A simulated token with simulated keys passes siwad verify and is accepted by a daemon.")
    func simulation() async throws {
        try await TemporaryDirectory.with { directory in
            let out = directory.path + "/apple"
            #expect(try await siwad(["simulate", "keys", "--out", out]).status == 0)
            let event = ["--key", out + "/key.pem", "--type", "consent-revoked", "--app", "com.example.one"]
            let token = try await siwad(["simulate", "token"] + event)
            #expect(token.status == 0)
            #expect(token.lines.count == 1)
            let file = try directory.write("token.jws", token.output)
            let verified = try await siwad(["verify", file, "--keys", out + "/keys.json", "--json"])
            #expect(verified.status == 0, "\(verified.output)")
            let settings = ["SIWAD_KEYS_URL": "file://\(out)/keys.json"]
            try await DaemonFixture.withDaemon(settings) { fixture, _, addresses in
                let sent = try await siwad(
                    ["simulate", "send"] + event + ["--count", "25", "--rate", "1000", addresses.notifications]
                )
                #expect(sent.status == 0, "\(sent.errors)")
                #expect(try await fixture.texts("SELECT count(*)::text FROM siwa.notifications") == ["25"])
            }
        }
    }

    @Test("A revocation that is simulated right after a sign-in, without a time, ends the session.")
    func simulatedRevocation() async throws {
        try await TemporaryDirectory.with { directory in
            let out = directory.path + "/apple"
            #expect(try await siwad(["simulate", "keys", "--out", out]).status == 0)
            try await DaemonFixture.withDaemon(["SIWAD_KEYS_URL": "file://\(out)/keys.json"]) { fixture, _, addresses in
                let isLive = "SELECT siwa.session_is_live('a')::text"
                _ = try await fixture.texts("SELECT siwa.record_sign_in('com.example.one', 'person.1')::text")
                _ = try await fixture.texts("SELECT siwa.open_session('com.example.one', 'person.1', 'a')::text")
                #expect(try await fixture.texts(isLive) == ["true"])
                let sent = try await siwad([
                    "simulate", "send", "--key", out + "/key.pem", "--type", "consent-revoked", "--sub", "person.1",
                    "--app", "com.example.one", addresses.notifications,
                ])
                #expect(sent.status == 0, "\(sent.errors)")
                #expect(try await fixture.texts(isLive) == ["false"])
            }
        }
    }

    /// Settings that allow several processes at the same time.
    private static let development = ["SIWAD_LISTEN": "127.0.0.1:0", "SIWAD_OPERATIONS_LISTEN": "127.0.0.1:0"]

    /// Runs a test in a directory that PostgreSQL's user can enter, so that the cluster is removed with it.
    private func withDirectory(_ body: (TemporaryDirectory) async throws -> Void) async throws {
        try await TemporaryDirectory.with { directory in
            try #require(chmod(directory.path, 0o755) == 0)
            try await body(directory)
        }
    }

    @Test("siwad dev writes its addresses and issuer to a file, and a second one in its directory names that file.")
    func developmentPlace() async throws {
        try await withDirectory { directory in
            let issuer = "https://apple.example"
            let settings = Self.development.merging(["SIWAD_ISSUER": issuer]) { $1 }
            async let first = siwad(["dev", "--once"], environment: settings, in: directory.path)
            try await eventually("the first process to start") {
                FileManager.default.fileExists(atPath: directory.path + "/.siwad/apple/key.pem")
            }
            let second = try await siwad(["dev", "--once"], environment: settings, in: directory.path)
            #expect(second.status == 1)
            #expect(second.errors.hasPrefix("siwad: siwad dev is running in this directory already: "))
            let run = try await first
            #expect(run.status == 0, "\(run.output)\(run.errors)")
            let file = ["--config", ".siwad/siwad.yaml", "--json"]
            let config = try await siwad(["config"] + file, in: directory.path)
            for key in ["listen", "operations_listen"] {
                let line = config.lines.first { $0.hasPrefix("{\"key\":\"\(key)\"") } ?? ""
                #expect(line.contains(".siwad/siwad.yaml"), "\(line)")
                #expect(line.contains("\"value\":\"127.0.0.1:") && !line.contains("127.0.0.1:0\""), "\(line)")
            }
            let line = config.lines.first { $0.hasPrefix("{\"key\":\"issuer\"") } ?? ""
            #expect(line.contains("\"value\":\"\(issuer)\"") && line.contains(".siwad/siwad.yaml"), "\(line)")
        }
    }

    @Test(
        "siwad dev prints where its cluster is if PostgreSQL's user can't enter the directory.",
        .enabled(if: geteuid() == 0)
    )
    func developmentElsewhere() async throws {
        try await TemporaryDirectory.with { directory in
            var places: Set<String> = []
            // A directory that remains in /var/tmp does no harm.
            defer { for place in places { try? FileManager.default.removeItem(atPath: place) } }
            for _ in 0..<2 {
                let run = try await siwad(["dev", "--once"], environment: Self.development, in: directory.path)
                #expect(run.status == 0, "\(run.output)\(run.errors)")
                let line = try #require(run.lines.first { $0.hasPrefix("  PostgreSQL     ") })
                #expect(line.hasSuffix(" migrations applied"), "\(line)")
                let place = String(line.dropFirst(17).prefix { $0 != "," })
                #expect(place.hasPrefix("/var/tmp/local-postgres-"), "\(line)")
                #expect(places.insert(place).inserted)
                try FileManager.default.removeItem(atPath: directory.file(".siwad"))
            }
        }
    }

    @Test("siwad dev --once completes its demonstration, also a second time, and leaves no process running.")
    func development() async throws {
        try await withDirectory { directory in
            for _ in 0..<2 {
                let run = try await siwad(["dev", "--once"], environment: Self.development, in: directory.path)
                #expect(run.status == 0, "\(run.output)\(run.errors)")
                #expect(run.output.contains("  PostgreSQL     .siwad/postgres, "))
                for type in ["email-disabled", "email-enabled", "consent-revoked", "account-deleted"] {
                    #expect(run.output.contains("POST \(type) for com.example.app: 200"), "\(type)")
                }
                #expect(run.output.contains("siwa.account_states"))
                #expect(run.output.contains("    200: Token verified, code exchanged"))
                #expect(run.output.contains("    200: Her session is ended"))
            }
        }
    }
}
