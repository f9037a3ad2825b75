import AccountStore
import AppleSimulator
import AppleTokens
import ArgumentParser
import Basics
import JOSE
import Listening
import Postgres
import Settings
import Synchronization
import Telemetry
import Terminal
import WebClient
import WebServer

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
            SimulateAppleCommand.self, SimulateSignInCommand.self, SimulatePersonCommand.self,
            SimulateBehaveCommand.self,
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

    @Option(help: ArgumentHelp("Directory; created if it does not exist.", valueName: "dir"), completion: .directory)
    var out: String
    @Flag(help: "Print one JSON object.")
    var json = false
    @OptionGroup var common: CommonOptions

    var needsSettings: Bool { false }

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

    @Option(help: ArgumentHelp("Private key, as simulate keys writes it.", valueName: "file"), completion: .file())
    var key: String
    @Option(help: ArgumentHelp("Address to listen on.", valueName: "host:port"))
    var listen = "127.0.0.1:8081"
    @OptionGroup var common: CommonOptions

    func run(_ invocation: Invocation) async throws {
        let apple = try KeyFiles.apple(keyFile: key, issuer: invocation.configuration.issuer)
        let published = SimulatedApple.keySetJSON(of: try SimulatedApple.others() + [apple])
        let address = try ListenAddress(parsing: listen, setting: "--listen")
        let log = Log(label: "siwad")
        let console = invocation.console
        let server = NamedService("key set") {
            try await KeySetServer.run(
                address: address,
                keySet: Array(published.utf8),
                eventLoops: .ofCommand,
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

struct SimulateSendCommand: DatabaseCommand {
    static let configuration = CommandConfiguration(
        commandName: "send",
        abstract: "Post signed notifications to an endpoint.",
        usage: "siwad simulate send <options> <url>",
        discussion: """
            With --count, each notification has its own identifier and, without --sub, its own person; Ctrl-C ends the \
            sending. If a database is configured, the command looks up there what became of each notification that was \
            accepted.

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
    @OptionGroup var database: DatabaseOptions

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
        let lookup = FateLookup(invocation: invocation)
        let known = await lookup.isKnown(event.jti)
        let command = self
        try await Services.runInterruptibly {
            let (summary, accepted, refused) = try await command.send(from: apple, over: .ofCommand, invocation.console)
            // In a task that an interrupt does not cancel, since it ends only the sending.
            let fates = await Task { await lookup.fates(of: accepted, areDuplicates: known) }.value
            let report = SendReport(summary: summary, fates: refused.isEmpty ? fates : (fates ?? []) + refused)
            invocation.console.print(report, asJSON: command.json)
            if let failure = report.failure { throw failure }
        }
    }

    /// - Returns: also `jti` and the digest of the token of the notifications that were accepted, and what became of the
    ///   others.
    private func send(
        from apple: SimulatedApple,
        over loops: EventLoops,
        _ console: Console
    ) async throws -> (SendSummary, [FateLookup.Sent], [SentFate]) {
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
        let sent = Mutex<(all: [FateLookup.Sent], accepted: [Int], refused: [SentFate])>(([], [], []))
        defer { progress.withLock { $0.line.end() } }
        let summary = try await sender.send(
            count: count,
            body: { _ in
                let event = event.event(now: .now())
                let token = try apple.token(for: event)
                let digest = SHA256.digest(Array(token.utf8).span)
                sent.withLock { $0.all.append((event.id, digest)) }
                return Array(SimulatedApple.body(token: token).utf8)
            },
            onOutcome: { number, outcome in
                if case .answered(let status, let body, _) = outcome {
                    sent.withLock { sent in
                        if status == 200 {
                            sent.accepted.append(number)
                        } else {
                            sent.refused.append(SentFate(status: status, body: body))
                        }
                    }
                }
                guard count > 1 else { return }
                progress.withLock { progress in
                    progress.done += 1
                    progress.line.advance(to: progress.done, of: count)
                }
            }
        )
        return sent.withLock { sent in
            (summary, sent.accepted.map { sent.all[$0] }, sent.refused)
        }
    }
}

/// Looks up in the configured database what became of notifications.
private struct FateLookup {
    /// A notification: its `jti`, and the SHA-256 of its compact JWS.
    typealias Sent = (id: String, tokenDigest: [UInt8])

    private static let batch = 1_000
    let invocation: Invocation

    /// True if a notification with this `jti` is stored, so that another one is a duplicate.
    func isKnown(_ id: String?) async -> Bool {
        // A failure is reported after the sending.
        guard let id, let found = try? await find([(id, [])]) else { return false }
        return found[0] != nil
    }

    /// - Returns: nil if no database can be asked. Nothing that was sent depends on it, so a failure is only noted.
    func fates(of sent: [Sent], areDuplicates: Bool) async -> [SentFate]? {
        guard !sent.isEmpty else { return nil }
        let console = invocation.console
        do {
            guard let found = try await find(sent) else {
                if console.errorStyle.width != nil {
                    console.note("name the database with --config or --database-url to see what becomes of it")
                }
                return nil
            }
            var seen: Set<String> = []
            return zip(sent, found).map { one, fate in
                if case .deadLetter = fate { return SentFate(fate) }
                return !areDuplicates && seen.insert(one.id).inserted ? SentFate(fate) : .duplicate
            }
        } catch {
            let failure = CommandFailure(knownCause: error) ?? CommandFailure(.failed, "\(error)")
            console.note("siwad: what became of it can't be looked up: \(failure)")
            return nil
        }
    }

    /// - Returns: the fate of each; nil if no database is configured.
    private func find(_ sent: [Sent]) async throws -> [NotificationFate?]? {
        guard invocation.configuration.database != .notConfigured else { return nil }
        return try await invocation.withDatabase { pool in
            var fates: [NotificationFate?] = []
            for start in stride(from: 0, to: sent.count, by: Self.batch) {
                let some = Array(sent[start..<min(start + Self.batch, sent.count)])
                let found = try await pool.withSession { session throws(PostgresError) in
                    try NotificationFate.find(some, in: session)
                }
                fates += found
            }
            return fates
        }
    }
}
