import FoundationEssentials
import Glibc
import TestSupport
import Testing

@Suite("siwad dev until it is stopped", .timeLimit(.minutes(10)))
struct DevelopmentTests {
    private static let settings = ["SIWAD_LISTEN": "127.0.0.1:0", "SIWAD_OPERATIONS_LISTEN": "127.0.0.1:0"]

    /// Runs a test in a directory that PostgreSQL's user can enter.
    private func withDirectory(_ body: (TemporaryDirectory) async throws -> Void) async throws {
        try await TemporaryDirectory.with { directory in
            try #require(chmod(directory.path, 0o755) == 0)
            try await body(directory)
        }
    }

    /// Runs a test when `siwad dev` has printed a line, and kills it if the test does not end it.
    private func withDev(
        _ options: String...,
        printing line: String = "Serving until Ctrl-C",
        in directory: TemporaryDirectory,
        _ body: (DaemonProcess) async throws -> Void
    ) async throws {
        let dev = DaemonProcess(["dev"] + options, environment: Self.settings, in: directory.path)
        do {
            try await eventually("siwad dev to print “\(line)”", within: .seconds(60)) {
                guard dev.status == nil else { throw TooLate(dev.log.joined()) }
                return dev.output.contains { $0.hasPrefix(line) }
            }
            try await body(dev)
        } catch {
            await dev.kill()
            throw error
        }
        await dev.kill()
    }

    /// A function of its own: Swift 6.3 runs the wrong closure if this one is in the test, next to those of its expectations.
    private static func messages(in output: [String]) -> [String] { output.filter { $0.hasPrefix("    told ") } }

    private func accounts(in directory: TemporaryDirectory) async throws -> Int {
        let list = ["accounts", "list", "--json", "--config", ".siwad/siwad.yaml"]
        return try await siwad(list, in: directory.path).lines.count
    }

    @Test("It prints each event, takes repeated signals for one, and says goodbye; the next start adds no people.")
    func serving() async throws {
        try await withDirectory { directory in
            var people = 0
            try await withDev(in: directory) { dev in
                people = try await accounts(in: directory)
                // Eight states of the people of the demonstration, and one of the person who signs in natively.
                #expect(people == 9)
                #expect(dev.output.contains { $0.hasPrefix("✓ Eve signs in with her phone") })
                let last = try #require(dev.output.firstIndex { $0.hasPrefix("✓ Eve stops using the app") })
                let told = try #require(dev.output[last...].first { $0.hasPrefix("    told ") })
                #expect(told.contains(": siwa.consent.revoked (msg_"), "\(told)")
                let list = try #require(dev.output.firstIndex { $0.hasPrefix("Endpoints afterwards ") })
                #expect(last < list, "the list shows the state after all messages")
                let messages = Self.messages(in: dev.output)
                #expect(messages.count { $0.hasSuffix(", signature verified") } == 6, "\(messages)")
                #expect(messages.count { $0 == "    told nothing" } == 2, "\(messages)")
                #expect(dev.output.count { $0.hasPrefix("    the application answered 500 to ") } == 1)
                // The command that it proposes.
                let start = try #require(dev.output.firstIndex { $0.hasPrefix("  siwad simulate send ") })
                let words = dev.output[start...].prefix { $0.hasSuffix("\\") || $0.contains("http") }.joined()
                    .split { " \\".contains($0) }.map(String.init)
                let sent = try await siwad(Array(words.dropFirst()), in: directory.path)
                #expect(sent.status == 0, "\(sent.errors)")
                #expect(sent.lines.last == "applied: consent revoked, 1 session ended", "\(sent.output)")
                try await eventually("the event") {
                    dev.output.last?.contains("consent-revoked of account ") == true
                        && dev.output.last?.hasSuffix(": applied, 1 session ended") == true
                }
                dev.send("TERM")
                dev.send("INT")
                dev.send("TERM")
                #expect(try await dev.end() == 0)
                #expect(dev.output.last?.hasSuffix(" Goodbye.") == true)
                #expect(!dev.log.contains { $0.contains("ended immediately") })
            }
            try await withDev(in: directory) { dev in
                let continued = try await accounts(in: directory)
                #expect(continued == people)
                #expect(!dev.output.contains { $0.contains("POST ") }, "no second demonstration")
            }
        }
    }

    @Test("Ctrl-C during the demonstration is a goodbye; with --once, the demonstration is reported as incomplete.")
    func interruption() async throws {
        try await withDirectory { directory in
            try await withDev(printing: "Four people sign in", in: directory) { dev in
                dev.send("INT")
                let status = try await dev.end()
                #expect(status == 0)
                #expect(dev.output.last?.hasSuffix(" Goodbye.") == true, "\(dev.output)")
                #expect(dev.log.isEmpty, "\(dev.log)")
                #expect(!dev.output.contains { $0.hasPrefix("✗") }, "\(dev.output)")
            }
            try await withDev("--once", printing: "Four people sign in", in: directory) { dev in
                dev.send("INT")
                let isComplete = try await dev.end() == 0
                #expect(dev.log == (isComplete ? [] : ["siwad: interrupted before the demonstration was complete"]))
            }
        }
    }

    @Test("With --once it fails if the application gets no messages.")
    func missingMessages() async throws {
        try await withDirectory { directory in
            // A further start leaves the endpoint paused.
            try await withDev(in: directory) { dev in
                let pause = ["endpoints", "pause", "demo", "--note", "It gets no messages."]
                let paused = try await siwad(pause + ["--config", ".siwad/siwad.yaml"], in: directory.path)
                #expect(paused.status == 0, "\(paused.errors)")
                dev.send("INT")
                #expect(try await dev.end() == 0)
            }
            let run = try await siwad(["dev", "--once"], environment: Self.settings, in: directory.path)
            #expect(run.status == 1, "\(run.output)\(run.errors)")
            let failure = "siwad: not every event had the expected effect: see ✗ above"
            #expect(run.errorLines.last ?? "" == failure, "\(run.errors)")
            let missing = run.lines.filter { $0.hasPrefix("    ✗ the application did not get siwa.") }
            #expect(missing.count == 6, "\(run.output)")
            let faults = run.lines.filter { $0.hasPrefix("✗ ") }
            #expect(faults.count == 6, "\(run.output)")
            #expect(faults.allSatisfy { $0.hasPrefix("✗ the application did not get siwa.") }, "\(faults)")
            #expect(run.lines.contains { $0.hasPrefix("✓ Eve stops using the app") }, "the effects are there")
        }
    }

    @Test("The secrets of another siwad in the environment do not disturb it.", arguments: [true, false])
    func otherSecrets(inFiles: Bool) async throws {
        try await withDirectory { directory in
            let secrets = [
                "SIWAD_SEALING_KEYS": "test:" + String(repeating: "A", count: 43) + "=",
                "SIWAD_APPLICATION_TOKENS": "shop " + String(repeating: "ab", count: 32),
            ]
            var environment = Self.settings
            for (name, secret) in secrets {
                environment[inFiles ? "\(name)_FILE" : name] = inFiles ? try directory.write(name, secret) : secret
            }
            let run = try await siwad(["dev", "--once"], environment: environment, in: directory.path)
            #expect(run.status == 0, "\(run.output)\(run.errors)")
        }
    }

    @Test("Its settings are in the file for the other commands, except those of which it has its own, which it names.")
    func settings() async throws {
        try await withDirectory { directory in
            let file = try directory.write(
                "mine.yaml",
                """
                application_listen: 127.0.0.1:0
                application_tokens: shop \(String(repeating: "ab", count: 32))
                application_tls_certificate: /nowhere/certificate.pem
                application_tls_key: /nowhere/key.pem
                apple_url: http://127.0.0.1:1
                delivery_allow: 10.0.0.0/8,127.0.0.0/8
                log_level: error
                """
            )
            let options = ["--config", file, "--nonce", "issued", "--code-exchange", "required"]
            // With the tokens, the application endpoint would refuse the demonstration.
            let run = try await siwad(["dev", "--once"] + options, environment: Self.settings, in: directory.path)
            #expect(run.status == 0, "\(run.output)\(run.errors)")
            let own = ["apple_url (\(file), line 5)", "application_listen (\(file), line 1)"]
            let note = "siwad dev ignores \(own.joined(separator: ", ")), application_tls_certificate ("
            #expect(run.errors.contains(note), "\(run.errors)")
            let config = try await siwad(["config", "--json", "--config", ".siwad/siwad.yaml"], in: directory.path)
            func line(_ key: String) -> Substring { config.lines.first { $0.hasPrefix("{\"key\":\"\(key)\"") } ?? "" }
            let expected = [
                ("nonce", "\"issued\""), ("code_exchange", "\"required\""), ("application_listen", "\"unix:/"),
                ("delivery_allow", "\"127.0.0.0/8,::1/128,10.0.0.0/8\""),
            ]
            for (key, value) in expected {
                #expect(line(key).contains("\"value\":\(value)"), "\(line(key))")
                #expect(line(key).contains(".siwad/siwad.yaml"), "\(line(key))")
            }
            for key in ["application_tokens", "log_level", "batch_limit"] {
                #expect(line(key).contains("\"source\":\"default\""), "\(line(key))")
            }
        }
    }

    @Test("--reset deletes the database, also right after a crash, and refuses while siwad dev runs.")
    func reset() async throws {
        try await withDirectory { directory in
            let reset = { () async throws -> CommandRun in
                try await siwad(["dev", "--reset"], in: directory.path)
            }
            #expect(try await reset().output == "There is no database here.\n")
            #expect(!FileManager.default.fileExists(atPath: directory.file(".siwad")))
            try await withDev(in: directory) { dev in
                let refused = try await reset()
                #expect(refused.status == 1)
                #expect(
                    refused.errors
                        == "siwad: siwad dev is running in this directory already: end it with Ctrl-C first\n"
                )
                #expect(try await accounts(in: directory) > 0)
                // The server ends after siwad.
                await dev.kill()
                let done = try await reset()
                #expect(done.status == 0, "\(done.errors)")
                #expect(done.output == "The database of siwad dev is deleted.\n")
            }
            #expect(!FileManager.default.fileExists(atPath: directory.file(".siwad/postgres")))
            #expect(FileManager.default.fileExists(atPath: directory.file(".siwad/apple/key.pem")))
            #expect(try await reset().output == "There is no database here.\n")
            let excluded = try await siwad(["dev", "--reset", "--once"], in: directory.path)
            #expect(excluded.status == 64)
        }
    }
}
