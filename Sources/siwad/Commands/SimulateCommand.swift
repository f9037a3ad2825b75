import AppleClient
import AppleSimulator
import AppleTokens
import ArgumentParser
import Basics
import NotificationServer
import Settings
import Synchronization
import Telemetry
import Terminal

/// Simulates Apple where Apple cannot be used: in development and tests.
struct SimulateCommand: ParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "simulate",
        abstract: "Simulate Apple: create and publish keys, sign and send notifications.",
        discussion: """
            Example:
              siwad simulate keys --out apple
              siwad simulate send --key apple/key.pem --type consent-revoked \\
                  --app com.example.app http://127.0.0.1:8080/apple/notifications
            """,
        subcommands: [
            SimulateKeysCommand.self, SimulateServeCommand.self, SimulateTokenCommand.self, SimulateSendCommand.self,
        ]
    )
}

struct SimulateKeysCommand: Command {
    static let configuration = CommandConfiguration(
        commandName: "keys",
        abstract: "Write a private key and its key set.",
        usage: "siwad simulate keys --out <dir> [<options>]",
        discussion: """
            Writes DIR/key.pem, which only you can read, and DIR/keys.json. An existing key is not replaced.

            Example:
              siwad simulate keys --out apple
              SIWAD_KEYS_URL=file://$PWD/apple/keys.json siwad serve
            """
    )

    @Option(help: ArgumentHelp("Directory; created if it does not exist.", valueName: "dir"))
    var out: String
    @Flag(help: "Print one JSON object.")
    var json = false
    @OptionGroup var common: CommonOptions

    func run(_ invocation: Invocation) async throws {
        let files = KeyFiles(directory: out)
        guard let apple = try files.create() else {
            throw CommandFailure(.failed, "\(files.key) exists: use it, or choose another --out")
        }
        if json {
            let line = JSONText.object([
                .init("kid", .string(apple.keyID)), .init("key", .string(files.key)),
                .init("keys", .string(files.keySet)),
            ])
            invocation.console.print(line.line)
        } else {
            invocation.console.print("\(files.key)  private key, kid \(apple.keyID)")
            invocation.console.print("\(files.keySet)  its key set, for SIWAD_KEYS_URL or siwad verify --keys")
        }
    }
}

struct SimulateServeCommand: Command {
    static let configuration = CommandConfiguration(
        commandName: "serve",
        abstract: "Publish a key set over HTTP, as Apple does.",
        usage: "siwad simulate serve --key <file> [<options>]",
        discussion: """
            Example:
              siwad simulate serve --key apple/key.pem
              SIWAD_KEYS_URL=http://127.0.0.1:8081/auth/keys siwad serve
            """
    )

    @Option(help: ArgumentHelp("Private key, as simulate keys writes it.", valueName: "file"))
    var key: String
    @Option(help: ArgumentHelp("Address to listen on.", valueName: "host:port"))
    var listen = "127.0.0.1:8081"
    @OptionGroup var common: CommonOptions

    func run(_ invocation: Invocation) async throws {
        let apple = try KeyFiles.apple(keyFile: key, issuer: invocation.configuration.issuer)
        let address = try ListenAddress(parsing: listen, setting: "--listen")
        let log = Log(label: "siwad")
        let console = invocation.console
        try await EventLoops.withOne { loops in
            let server = NamedService("key set") {
                try await KeySetServer.run(
                    address: address,
                    keySet: Array(apple.keySetJSON.utf8),
                    eventLoops: loops,
                    log: log
                ) { port in
                    let bound = ListenAddress(host: address.host, port: port)
                    console.print("http://\(bound)/auth/keys  kid \(apple.keyID), until Ctrl-C")
                }
            }
            do {
                try await Services.run(Services.group([server], grace: .seconds(1), log: log), log: log)
            } catch {
                throw ListenAddress.failure(error, of: [address])
            }
        }
    }
}

struct SimulateTokenCommand: Command {
    static let configuration = CommandConfiguration(
        commandName: "token",
        abstract: "Print a signed notification in Apple's wire format.",
        usage: "siwad simulate token <options>",
        discussion: """
            Example:
              siwad simulate token --key apple/key.pem --type account-deleted \\
                  --app com.example.app --sub 000768.6166f031167141e695698239959f591a.1521
            """
    )

    @OptionGroup var event: EventOptions
    @Flag(help: "Print the whole body of the request: {\"payload\":…}.")
    var body = false
    @OptionGroup var common: CommonOptions

    func run(_ invocation: Invocation) async throws {
        let apple = try KeyFiles.apple(keyFile: event.key, issuer: invocation.configuration.issuer)
        let token = try apple.token(for: event.event(now: .now()))
        invocation.console.print(body ? SimulatedApple.body(token: token) : token)
    }
}

// MARK: - Send

struct SimulateSendCommand: Command {
    static let configuration = CommandConfiguration(
        commandName: "send",
        abstract: "Post signed notifications to an endpoint.",
        usage: "siwad simulate send <options> <url>",
        discussion: """
            With --count, each notification has its own identifier and, without --sub, its own person.

            Example:
              siwad simulate send --key apple/key.pem --type consent-revoked \\
                  --app com.example.app --count 1000 --rate 100 \\
                  http://127.0.0.1:8080/apple/notifications
            """
    )

    @OptionGroup var event: EventOptions
    @Option(parsing: .unconditional, help: "Number of notifications.")
    var count = 1
    @Option(parsing: .unconditional, help: "Notifications per second; no limit if omitted.")
    var rate: Double?
    @Flag(help: "Print one JSON object about all of them.")
    var json = false
    @Argument(help: "The endpoint.")
    var url: String
    @OptionGroup var common: CommonOptions

    func validate() throws {
        guard count > 0 else { throw ValidationError("--count must be at least 1") }
        try Self.validate(rate: rate)
    }

    /// Refuses rates that lead to a time beyond the range of the clock.
    static func validate(rate: Double?) throws {
        guard rate.map({ $0 >= 0.001 && $0.isFinite }) ?? true else {
            throw ValidationError("--rate must be at least 0.001")
        }
    }

    func run(_ invocation: Invocation) async throws {
        let apple = try KeyFiles.apple(keyFile: event.key, issuer: invocation.configuration.issuer)
        let summary = try await EventLoops.withOne { try await send(from: apple, over: $0, invocation.console) }
        let report = SendReport(summary: summary)
        invocation.console.print(report, asJSON: json)
        if let failure = report.failure { throw failure }
    }

    private func send(
        from apple: SimulatedApple,
        over loops: EventLoops,
        _ console: Console
    ) async throws -> SendSummary {
        let sender: NotificationSender
        do {
            sender = try NotificationSender(
                url: url,
                version: Version.current,
                eventLoopGroup: loops.group,
                rate: rate
            )
        } catch {
            throw CommandFailure(.usage, error.description)
        }
        let (event, count) = (event, count)
        let progress = Mutex((line: ProgressLine(title: "sending", after: .zero, on: console), done: 0))
        defer { progress.withLock { $0.line.end() } }
        return try await sender.send(
            count: count,
            body: { _ in
                let token = try apple.token(for: event.event(now: .now()))
                return Array(SimulatedApple.body(token: token).utf8)
            },
            onOutcome: { _, outcome in
                if count == 1 {
                    if case .answered(_, let body, _) = outcome, !body.isEmpty {
                        console.note(VisibleText.visible(body))
                    }
                } else {
                    progress.withLock { progress in
                        progress.done += 1
                        progress.line.advance(to: progress.done, of: count)
                    }
                }
            }
        )
    }
}

struct SendReport: CommandOutput {
    let summary: SendSummary

    private var sent: Int { summary.statuses.values.reduce(summary.failures, +) }
    private var accepted: Int { summary.statuses[200, default: 0] }
    private var byStatus: [(key: Int, value: Int)] { summary.statuses.sorted { $0.key < $1.key } }

    /// One line: `1000 sent in 2.1 s, 476 a second: 200 × 998, 503 × 2; half within 1.2 ms, 99 % within 4.0 ms`.
    func lines(style: OutputStyle) -> [String] {
        var parts = byStatus.map { "\($0.key) × \($0.value)" }
        if summary.failures > 0 { parts.append("no answer × \(summary.failures)") }
        let seconds = summary.duration / .seconds(1)
        var text = "\(sent) sent in \(Self.rounded(seconds)) s"
        if sent > 1, seconds > 0 { text += ", \(Int(Double(sent) / seconds)) a second" }
        text += ": " + parts.joined(separator: ", ")
        guard let half = summary.latency(ofShare: 0.5), let most = summary.latency(ofShare: 0.99) else { return [text] }
        if sent == 1 { return [text + "; after \(Self.rounded(half / .milliseconds(1))) ms"] }
        let (median, slow) = (Self.rounded(half / .milliseconds(1)), Self.rounded(most / .milliseconds(1)))
        return [text + "; half within \(median) ms, 99 % within \(slow) ms"]
    }

    var json: [JSONText] {
        func microseconds(_ share: Double) -> JSONText {
            summary.latency(ofShare: share).map { Int64($0 / .microseconds(1)) }.json
        }
        return [
            .object([
                .init("sent", sent.json),
                .init("statuses", .object(byStatus.map { .init("\($0.key)", $0.value.json) })),
                .init("failures", summary.failures.json),
                .init("first_failure", summary.firstFailure.json),
                .init("duration_ms", Int(summary.duration / .milliseconds(1)).json),
                .init("p50_us", microseconds(0.5)),
                .init("p99_us", microseconds(0.99)),
            ])
        ]
    }

    var failure: CommandFailure? {
        if accepted == sent { return nil }
        if summary.statuses.isEmpty {
            return CommandFailure(.unavailable, "no answer: \(summary.firstFailure ?? "unknown"): check the URL")
        }
        let refused = "\(sent - accepted) of \(sent) were not accepted"
        return CommandFailure(accepted == 0 ? .failed : .partlyFailed, refused)
    }

    private static func rounded(_ value: Double) -> String { "\((value * 10).rounded() / 10)" }
}
