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
                #expect(dev.output.contains { $0.hasPrefix("✓ Eve stops using the app") })
                let messages = dev.output.filter { $0.hasPrefix("    told ") }
                #expect(messages.count { $0.hasSuffix(", signature verified") } == 5, "\(messages)")
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
