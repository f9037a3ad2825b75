import FoundationEssentials
import Glibc
import TestSupport
import Testing

@Suite("Completions and man pages", .timeLimit(.minutes(5)))
struct CompletionTests {
    private static let root = #filePath.split(separator: "/").dropLast(3).map { "/\($0)" }.joined()

    /// What bash offers for the last word of a line, which Tab completes.
    private func offered(_ line: String, _ variables: String...) async throws -> [Substring] {
        let script = """
            source /dev/stdin <<<"$($0 --generate-completion-script bash)"
            COMP_LINE=$1
            read -r -a COMP_WORDS <<<"$1"
            [[ $1 == *' ' ]] && COMP_WORDS+=('')
            COMP_WORDS[0]=$0 COMP_POINT=${#COMP_LINE} COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
            COMPREPLY=()
            _siwad siwad "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
            printf '%s\\n' "${COMPREPLY[@]}"
            """
        let run = try await ChildProcess.run(["env"] + variables + ["bash", "-c", script, Binary.path, line])
        return run.output.split(separator: "\n")
    }

    @Test(
        "Bash completes commands, options and the values of options.",
        arguments: [
            ("siwad acc", ["accounts"]),
            ("siwad sessions s", ["show"]),
            ("siwad accounts list --state ", ["authorized", "revoked", "deleted", "unknown"]),
            ("siwad sessions list --reason o", ["operator"]),
            ("siwad notifications list --outcome ", ["applied", "superseded", "unchanged"]),
            ("siwad tail --type account-", ["account-deleted"]),
            ("siwad dead-letters list --reason un", ["unknown-audience", "unknown-event-type"]),
            ("siwad dead-letters stats --by ", ["reason", "app", "type"]),
            (
                "siwad audit list --action d",
                [
                    "dead-letters replay", "dead-letters discard", "dead-letters reopen", "deliveries retry",
                    "deliveries discard",
                ]
            ),
            ("siwad serve --log-f", ["--log-format"]),
            ("siwad serve --log-format ", ["text", "json"]),
            ("siwad accounts list --log-level e", ["error"]),
            ("siwad verify --keys /proc/versio", ["/proc/version"]),
            ("siwad serve --spool-directory /pro", ["/proc"]),
        ]
    )
    func values(line: String, expected: [String]) async throws {
        #expect(try await offered(line).map(String.init) == expected)
    }

    @Test("The apps, teams and client ids come from SIWAD_APPS, or from the file of --config.")
    func configuration() async throws {
        let apps = "SIWAD_APPS=\(DaemonFixture.apps)"
        #expect(
            try await offered("siwad accounts list --app ", apps)
                == ["com.example.one", "com.example.two", "com.example.other"]
        )
        #expect(try await offered("siwad sessions list --team ", apps) == ["AAAAAAAAAA", "BBBBBBBBBB"])
        #expect(try await offered("siwad clients remove com.example.w", apps) == ["com.example.web"])
        try await TemporaryDirectory.with { directory in
            // A setting that is malformed does not matter here.
            let file = try directory.write("siwad.yaml", "apps: CCCCCCCCCC/com.example.file\nqueue_limit: many\n")
            for option in ["--config \(file)", "--config '\(file)'", "--config = \(file)"] {
                #expect(try await offered("siwad tail \(option) --app ") == ["com.example.file"], "\(option)")
            }
        }
    }

    @Test("Without a configuration that can be read, a shell gets no values, no error, and no wait.")
    func silence() async throws {
        try await TemporaryDirectory.with { directory in
            let pipe = directory.file("pipe")
            #expect(mkfifo(pipe, 0o600) == 0)
            let malformed = try directory.write("malformed", "apps: [")
            for option in ["", "--config \(pipe)", "--config \(malformed)", "--config /missing", "--config"] {
                #expect(try await offered("siwad accounts list \(option) --app ") == [], "\(option)")
            }
            #expect(try await offered("siwad accounts list --app ", "SIWAD_APPS=none", "SIWAD_UNKNOWN=1") == [])
            let incomplete = try await siwad(["---completion", "accounts", "list", "--", "--app"])
            #expect(incomplete.output.isEmpty && incomplete.errors.isEmpty)
        }
    }

    @Test(
        "deploy/manual writes a man page for each command, without warnings, and the completions of three shells.",
        .enabled(if: ["man", "python3"].allSatisfy { access("/usr/bin/\($0)", X_OK) == 0 }, "no man or no Python")
    )
    func manual() async throws {
        try await TemporaryDirectory.with { directory in
            let written = try await ChildProcess.run([Self.root + "/deploy/manual", Binary.path, directory.path])
            #expect(written.isSuccess && written.output.isEmpty, "\(written.output)")
            let pages = try FileManager.default.contentsOfDirectory(atPath: directory.file("man/man1"))
            #expect(pages.contains("siwad.1") && pages.contains("siwad-accounts.1") && !pages.contains("siwad-help.1"))
            for page in pages {
                let path = directory.file("man/man1/\(page)")
                let man = try await ChildProcess.run(["sh", "-c", "man --warnings -l \"$0\" 2>&1 >/dev/null", path])
                #expect(man.isSuccess && man.output.isEmpty, "\(page): \(man.output)")
            }
            let page = try await ChildProcess.run(["man", "-l", directory.file("man/man1/siwad-accounts.1")])
            for text in ["siwad accounts list [person] [options]", "--state state", "(values: authorized, revoked"] {
                #expect(page.output.contains(text), "\(text): \(page.output)")
            }
            for (folder, file) in [
                ("bash-completion/completions", "siwad"), ("zsh/site-functions", "_siwad"),
                ("fish/vendor_completions.d", "siwad.fish"),
            ] {
                let script = try String(contentsOfFile: directory.file("\(folder)/\(file)"), encoding: .utf8)
                #expect(script.contains("dead-letters"), "\(file)")
            }
        }
    }

    @Test("--version prints the versions of siwad and of what it runs with, as JSON with --json.")
    func version() async throws {
        let version = try await siwad(["--version"])
        #expect(version.status == 0)
        let names = version.lines.compactMap { $0.split(separator: " ").first }
        #expect(names == ["siwad", "commit", "Swift", "libpq", "OpenSSL"])
        let object = try await siwad(["--version", "--json"])
        #expect(object.output.hasPrefix(#"{"version":"\#(version.lines[0].split(separator: " ")[1])","commit":""#))
        for (line, name) in zip(version.lines, ["version", "commit", "swift", "libpq", "openssl"]) {
            let text = line.split(separator: " ").dropFirst().joined(separator: " ")
            #expect(!text.isEmpty && object.output.contains(#""\#(name)":"\#(text)""#), "\(line)")
        }
    }
}
