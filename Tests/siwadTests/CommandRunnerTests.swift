import Glibc
import Settings
import Terminal
import TestSupport
import Testing

@testable import siwad

private let url = "postgresql://u:S3cret@h/db"
private let token =
    "eyJraWQiOiJmaDZCczhDIiwiYWxnIjoiUlMyNTYifQ.eyJpc3MiOiJodHRwczovL2FwcGxlaWQuYXBwbGUuY29tIn0.c2lnbmF0dXJl"

@Suite("Command line")
struct CommandRunnerTests {
    @Test("A wrong command line ends with 64 and one line that names the help.")
    func usage() async {
        let cases: [([String], String)] = [
            (["nonsense"], "siwad: Unknown command 'nonsense': see 'siwad --help'\n"),
            (["help", "nonsense"], "siwad: Unknown command 'nonsense': see 'siwad --help'\n"),
            (["help", "sesions"], "siwad: Unknown command 'sesions': did you mean \"sessions\"?\n"),
            (
                ["help", "sessions", "nonsense"],
                "siwad: Unknown command 'nonsense': see 'siwad sessions --help'\n"
            ),
            (["accounts", "list", "--bogus"], "siwad: Unknown option '--bogus': see 'siwad accounts list --help'\n"),
            (
                ["accounts", "list", "--limit", "0"],
                "siwad: --limit must be at least 1: see 'siwad accounts list --help'\n"
            ),
            (
                ["accounts", "list", "--limit", "-1"],
                "siwad: --limit must be at least 1: see 'siwad accounts list --help'\n"
            ),
            (
                ["sessions", "end", "--sub", "a", "--sub=b", "--note", "x"],
                "siwad: --sub takes one value and is given twice: run the command for each value\n"
            ),
            (
                ["accounts", "history", "one", "--sub", "other"],
                "siwad: name the person once: as the argument, or with --sub: see 'siwad accounts history --help'\n"
            ),
            (
                ["sessions", "end", "a", "--note", "x", "--operator", " "],
                "siwad: --operator must be a name: see 'siwad sessions end --help'\n"
            ),
            (
                ["sessions", "end", "a", "--note", "x", "--operator", " Siwad "],
                "siwad: the operator name siwad is reserved for the daemon: pass the name of the person who decides with "
                    + "--operator: see 'siwad sessions end --help'\n"
            ),
            (
                ["dead-letters", "replay", "--all", "--dry-run", "--operator", "siwad"],
                "siwad: the operator name siwad is reserved for the daemon: pass the name of the person who decides with "
                    + "--operator: see 'siwad dead-letters replay --help'\n"
            ),
            (
                ["dev", "--keys-url", "https://example.com/keys"],
                "siwad: siwad dev has its own PostgreSQL, simulated Apple and application socket: leave out --keys-url: "
                    + "see 'siwad dev --help'\n"
            ),
            (
                ["dev", "--application-listen", "127.0.0.1:1", "--apple-url", "http://[::1]:1", "--apple-keys", "x"],
                "siwad: siwad dev has its own PostgreSQL, simulated Apple and application socket: leave out --apple-url, "
                    + "--apple-keys, --application-listen: see 'siwad dev --help'\n"
            ),
            (
                ["sessions", "end", "--note", "x"],
                "siwad: name sessions, or a person with --sub: see 'siwad sessions end --help'\n"
            ),
            (
                ["sign-in", "--request", "request.json", "--session", "s1"],
                "siwad: add --client-id, or put these parts into the file of --request: see 'siwad sign-in --help'\n"
            ),
            (
                ["sessions", "end", "a", "--note", " "],
                "siwad: --note must say why: see 'siwad sessions end --help'\n"
            ),
            (
                ["sessions", "end", "-Nx_hPpS8QtCbcQfa-sAg", "--note", "stolen"],
                "siwad: '-Nx_hPpS8QtCbcQfa-sAg' begins with a hyphen: write --id before it if the command has that option, or "
                    + "write it last, after --\n"
            ),
            (
                ["sessions", "end", "--json", "-xhy", "--note", "stolen"],
                "siwad: '-xhy' begins with a hyphen: write --id before it if the command has that option, or write it last, "
                    + "after --\n"
            ),
            (
                ["sessions", "end", "-Nx", "--note", "stolen"],
                "siwad: '-Nx' begins with a hyphen: write --id before it if the command has that option, or write it last, "
                    + "after --\n"
            ),
            (
                ["accounts", "list", "-json"],
                "siwad: Unknown option '-json'. Did you mean '--json'?: see 'siwad accounts list --help'\n"
            ),
            (
                ["deliveries", "show", "shop"],
                "siwad: The value 'shop' is invalid for '<id>': write ENDPOINT/POSITION, such as shop/4711: see "
                    + "'siwad deliveries show --help'\n"
            ),
            (
                ["deliveries", "list", "--id", "shop"],
                "siwad: The value 'shop' is invalid for '--id <id>': write ENDPOINT/POSITION, such as shop/4711: see "
                    + "'siwad deliveries list --help'\n"
            ),
            (
                ["changes", "show", "x"],
                "siwad: The value 'x' is invalid for '<position>': write a number, such as 17: see "
                    + "'siwad changes show --help'\n"
            ),
            (
                ["dead-letters", "show", "x"],
                "siwad: The value 'x' is invalid for '<number>': write a number, such as 17: see "
                    + "'siwad dead-letters show --help'\n"
            ),
            (
                ["audit", "show", "--id", "x"],
                "siwad: The value 'x' is invalid for '--id <number>': write a number, such as 17: see "
                    + "'siwad audit show --help'\n"
            ),
            (
                ["accounts", "list", "--state", "happy"],
                "siwad: The value 'happy' is invalid for '--state <state>'. Please provide one of 'authorized', "
                    + "'revoked', 'deleted' or 'unknown': see 'siwad accounts list --help'\n"
            ),
        ]
        for (arguments, errors) in cases {
            let result = await run(arguments)
            #expect(result == CommandResult(status: .usage, output: "", errors: errors))
        }
    }

    @Test(
        "--operator is required if the login name is that of the daemon.",
        arguments: [
            ["sessions", "end", "a"], ["clients", "remove", "com.example.app"], ["dead-letters", "discard", "--all"],
            ["dead-letters", "reopen", "--all"], ["dead-letters", "replay", "--all"],
        ],
        [["LOGNAME": "siwad"], ["USER": "siwad"]]
    )
    func reservedLoginName(command: [String], login: [String: String]) async {
        let settings = ["SIWAD_DATABASE_URL": "host=/nowhere", "SIWAD_APPS": "A1B2C3D4E5/com.example.app"]
        let environment = settings.merging(login) { first, _ in first }
        let refused = await siwadCommand(command + ["--note", "x"], environment: environment)
        #expect(refused.status == .usage)
        #expect(
            refused.errors
                == "siwad: the login name siwad is reserved for the daemon: pass the name of the person who decides with "
                + "--operator\n"
        )
        // The database is asked next.
        for options in [["--note", "x", "--operator", "kim"], ["--dry-run"]] {
            #expect(await siwadCommand(command + options, environment: environment).status == .unavailable)
        }
    }

    @Test(
        "--help prints an example to standard output.",
        arguments: [
            ["serve"], ["dev"], ["migrate"], ["migrate", "up"], ["migrate", "status"], ["migrate", "sql"],
            ["accounts", "show"], ["accounts", "list"], ["accounts", "history"], ["sessions", "list"],
            ["sessions", "end"], ["notifications", "list"], ["notifications", "show"], ["simulate", "keys"],
            ["simulate", "serve"], ["simulate", "token"], ["simulate", "send"], ["verify"], ["config"],
        ]
    )
    func help(command: [String]) async {
        let result = await run(command + ["--help"])
        #expect(result.status == .done)
        #expect(result.errors.isEmpty)
        #expect(result.output.contains("Example:\n  "))
        if command != ["migrate"] {
            #expect(result.output.contains("--config <file>"))
            #expect(result.output.contains("--log-level <level>"))
        }
    }

    @Test(
        "The help command prints the help of the command that it names.",
        arguments: [[], ["sessions"], ["audit", "show"]] as [[String]]
    )
    func helpCommand(command: [String]) async {
        let named = await run(["help"] + command)
        let own = await run(command + ["--help"])
        #expect(named == own)
        #expect(named.status == .done)
    }

    @Test("The help of every command fits 80 columns, and its examples can be pasted.")
    func width() async {
        var commands: [[String]] = [[]]
        var seen = 0
        while let command = commands.popLast() {
            let help = await run(command + ["--help"])
            #expect(help.status == .done)
            for line in help.lines { #expect(VisibleText.width(line) <= 80, "\(line)") }
            expectPastableExample(help.lines)
            let subcommands = help.lines.drop { $0 != "SUBCOMMANDS:" }.dropFirst().prefix { !$0.isEmpty }
            for line in subcommands where line.prefix(3).last?.isLetter == true {
                commands.append(command + [String(line.dropFirst(2).prefix { $0 != " " })])
            }
            seen += 1
        }
        #expect(seen > 30)
    }

    /// Expects one command per line, or continued lines. A line that is wrapped begins in the first column.
    private func expectPastableExample(_ help: [String]) {
        let example = help.drop { !$0.hasPrefix("Example") }.dropFirst().prefix { !$0.isEmpty }
        #expect(!example.isEmpty, "\(help)")
        var isOpen = false
        for line in example {
            #expect(line.hasPrefix("  "), "\(line)")
            let isCommand = line.hasPrefix("  siwad ") || line.hasPrefix("  SIWAD_")
            #expect(isCommand != isOpen, "\(line)")
            isOpen = line.hasSuffix(" \\")
        }
        #expect(!isOpen, "\(example)")
    }

    @Test("A wrong setting ends with 78 and the first problem.")
    func wrongSetting() async {
        let result = await siwad("accounts", "list", environment: ["SIWAD_LISTN": "x", "SIWAD_BATCH_LIMIT": "many"])
        #expect(result.status == .configuration)
        #expect(
            result.errors
                == "siwad: unknown setting “SIWAD_LISTN” in the environment: did you mean SIWAD_LISTEN? "
                + "(and 1 more problem: siwad config lists all)\n"
        )
    }

    @Test("config lists all settings and every problem.")
    func everyProblem() async {
        let environment = [
            "SIWAD_LISTN": "x", "SIWAD_BATCH_LIMIT": "many", "SIWAD_DATABASE_URL": "siwad:geheim@db",
        ]
        let result = await siwad("config", environment: environment)
        #expect(result.status == .configuration)
        #expect(result.errors.split(separator: "\n").count == 3)
        #expect(result.output.contains("SIWAD_BATCH_LIMIT                  many  malformed  (SIWAD_BATCH_LIMIT)\n"))
        #expect(
            result.output.contains(
                "SIWAD_APPS                         -  missing, required by siwad serve  (default)\n"
            )
        )
        #expect(result.output.contains("SIWAD_DATABASE_URL                 ****  malformed  (SIWAD_DATABASE_URL)\n"))
        #expect(result.output.contains("SIWAD_SHUTDOWN_GRACE               30s  (default)\n"))
        #expect(!(result.output + result.errors).contains("geheim"))
        let json = await siwad("config", "--json", environment: environment)
        #expect(json.status == .configuration)
        #expect(json.lines.count == SettingKey.allCases.count)
        #expect(json.lines.count { $0.hasSuffix(#","problem":"malformed"}"#) } == 2)
        #expect(json.lines.count { $0.hasSuffix(#","problem":"missing"}"#) } == 1)
    }

    @Test(
        "A URL or token in the wrong place is not repeated in the message.",
        arguments: [
            (["config"], ["SIWAD_APPS": url]), (["config"], ["SIWAD_LISTEN": url]), (["config"], ["SIWAD_ISSUER": url]),
            (["config"], ["SIWAD_SPOOL_DIRECTORY": url]), (["config"], ["SIWAD_LOG_LEVEL": token]),
            (["config", "--config", url], [:]), (["config"], ["SIWAD_DATABASE_URL_FILE": url]),
            (["config", "--listen", token], [:]), (["verify", token], [:]),
            (["verify", "/dev/null", "--keys", url], [:]),
            (["dead-letters", token], [:]), (["dead-letters", "show", token], [:]), ([url], [:]),
            (["notifications", "list", "--since", token], [:]), (["accounts", "list", "--limit=\(url)"], [:]),
            (["simulate", "token", "--key", url, "--type", "x", "--app", "y"], [:]),
            (["client-secret", "--client-id", url], ["SIWAD_APPS": "A1B2C3D4E5/com.example.app"]),
            (["endpoints", "apply", url, "--dry-run"], [:]),
        ] as [([String], [String: String])]
    )
    func strays(arguments: [String], environment: [String: String]) async {
        let result = await siwadCommand(arguments, environment: environment)
        #expect(!(result.output + result.errors).contains("S3cret"), "\(result)")
        #expect(!(result.output + result.errors).contains("eyJ"), "\(result)")
        #expect(!result.errors.isEmpty || result.output.contains("****"))
    }

    @Test("verify masks the name of a file that is no key set if it looks like a URL.")
    func urlAsKeySet() async throws {
        let directory = try TemporaryDirectory()
        try #require(mkdir(directory.file("https:"), 0o700) == 0)
        try directory.write(Array("{}".utf8), to: "https:/u:S3cret@h")
        let result = await siwad("verify", "/dev/null", "--keys", directory.file("https://u:S3cret@h"))
        #expect(result.errors.contains("**** is no key set"), "\(result.errors)")
        #expect(!result.errors.contains("S3cret"), "\(result.errors)")
    }

    @Test("The name of a key may begin with a hyphen.")
    func hyphen() async {
        let key = await siwad("sealing", "new-key", "--name", "-Nx_h")
        #expect(key.status == .done && key.output.hasPrefix("-Nx_h:"), "\(key.errors)")
        let tokens = await siwad("tokens", "list", "--key", "-h", environment: ["SIWAD_DATABASE_URL": "host=/nowhere"])
        #expect(tokens.status == .unavailable, "\(tokens.errors)")
    }

    @Test("A request for help in the place of a note prints the help.")
    func helpForNote() async {
        let environment = ["SIWAD_DATABASE_URL": "host=/nowhere"]
        let result = await siwad("endpoints", "pause", "shop", "--note", "-h", environment: environment)
        #expect(result.status == .done && result.output.contains("USAGE: siwad endpoints pause"), "\(result.output)")
    }

    @Test(
        "The message about a missing file names the next step.",
        arguments: [
            ["config", "--config", "/nope"], ["verify", "/nope"], ["verify", "/dev/null", "--keys", "/nope"],
            // Ids and nonces of others may begin with a hyphen.
            ["verify", "/nope", "--client-id", "c", "--nonce", "-Nx_h", "--code", "-h", "--access-token", "-Nx_h"],
            [
                "sign-in", "--idempotency-key", "-Nx_h", "--client-id", "c", "--token", "/nope", "--nonce", "-Nx_h",
                "--code", "-Nx_h", "--session", "-h",
            ],
        ]
    )
    func missingFile(arguments: [String]) async {
        let result = await siwadCommand(arguments)
        #expect(result.errors.hasSuffix("/nope: No such file or directory: check the path\n"))
    }

    @Test("verify refuses a token as an argument and says where it reads tokens from.")
    func tokenAsFile() async {
        let result = await siwad("verify", token)
        #expect(result.status == .usage)
        #expect(result.errors.contains("the token is read from a file or, with -, from standard input"))
    }

    @Test("config shows the log format that is used if none is set.")
    func logFormat() async {
        let piped = await siwad("config")
        #expect(piped.output.contains("SIWAD_LOG_FORMAT                   json  (default)\n"))
        let style = OutputStyle(width: 200, usesColor: false)
        let onTerminal = await siwadCommand(["config"], style: style)
        #expect(onTerminal.output.contains("SIWAD_LOG_FORMAT                   text  (default)\n"))
    }

    @Test("The key set's URL is checked with the other settings.")
    func keySetURL() async {
        let result = await siwad("config", "--keys-url", "http://example.com/keys")
        #expect(result.status == .configuration)
        #expect(result.errors.hasPrefix("siwad: --keys-url: "))
        #expect(
            result.output.contains(
                "SIWAD_KEYS_URL                     http://example.com/keys  malformed  (--keys-url)\n"
            )
        )
    }

    @Test("serve names the missing setting.")
    func missing() async {
        let noDatabase = await siwad("serve", environment: ["SIWAD_APPS": "A1B2C3D4E5/com.example.app"])
        #expect(noDatabase.status == .configuration)
        #expect(noDatabase.errors.contains("no database is configured: set SIWAD_DATABASE_URL"))
        let noApps = await siwad("serve", environment: ["SIWAD_DATABASE_URL": "postgres://127.0.0.1:1/siwa"])
        #expect(noApps.status == .configuration)
        #expect(noApps.errors.contains("no apps are configured: set SIWAD_APPS to TEAMID/primary.app.id"))
        let badURL = await siwad("accounts", "list", environment: ["SIWAD_DATABASE_URL": "host=a port=geheim=x 'y"])
        #expect(badURL.status == .configuration)
        #expect(badURL.errors.hasPrefix("siwad: SIWAD_DATABASE_URL: "))
        #expect(!badURL.errors.contains("geheim"))
    }

    @Test("An unreachable PostgreSQL ends with 69.")
    func unreachable() async {
        let environment = ["SIWAD_DATABASE_URL": "postgres://siwad:geheim@127.0.0.1:1/siwa"]
        let result = await siwad("accounts", "list", environment: environment)
        #expect(result.status == .unavailable)
        #expect(result.errors.hasSuffix("check that PostgreSQL runs there, and SIWAD_DATABASE_URL\n"))
        #expect(!result.errors.contains("geheim"))
        #expect(result.errors.split(separator: "\n").count == 1)
    }

    @Test("config shows each value, its source and its meaning, with masked passwords.")
    func config() async {
        let environment = ["SIWAD_DATABASE_URL": "postgres://siwad:geheim@db/siwa"]
        let result = await siwad("config", "--batch-limit", "64", environment: environment)
        #expect(result.status == .done)
        let url = "postgres://siwad:****@db/siwa  (SIWAD_DATABASE_URL)"
        #expect(result.lines[0] == "SIWAD_DATABASE_URL                 " + url)
        #expect(result.output.contains("SIWAD_BATCH_LIMIT                  64  (--batch-limit)\n"))
        #expect(!result.output.contains("geheim"))
        let json = await siwad("config", "--json", environment: environment)
        #expect(
            json.lines[1]
                == #"{"key":"database_connections","environment":"SIWAD_DATABASE_CONNECTIONS","value":"4","#
                + #""source":"default","meaning":"maximum number of connections to PostgreSQL; at least 2, with a spool 3"}"#
        )
    }

    @Test(
        "config shows all settings before it reports an invalid connection string.",
        arguments: ["postgres://u:geheim@h:x/db", "postgres://u:p@geheim@h/db", "host=h passwordd=geheim"]
    )
    func unreadableURL(url: String) async {
        let result = await siwad("config", environment: ["SIWAD_DATABASE_URL": url])
        #expect(result.status == .configuration)
        #expect(result.lines.count { $0.hasPrefix("SIWAD_DATABASE_URL ") } == 1)
        #expect(result.errors.contains("SIWAD_DATABASE_URL"))
        #expect(result.errors.split(separator: "\n").count == 1)
        #expect(!(result.output + result.errors).contains("geheim"))
    }

    @Test(
        "A command whose output is lost fails with one line.",
        arguments: [
            ["config"], ["config", "--json"], ["migrate", "sql"], ["--help"], ["serve", "--help"], ["--version"],
        ]
    )
    func lostOutput(arguments: [String]) async {
        let result = await siwadCommand(arguments, room: 3)
        #expect(result.status == .failed)
        #expect(
            result.errors
                == "siwad: standard output can't be written: no room; the output is incomplete\n"
        )
    }

    private func run(_ arguments: [String]) async -> CommandResult {
        await siwadCommand(arguments)
    }
}
