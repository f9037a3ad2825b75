import AppleClient
import AppleTokens
import AppleSimulator
import ArgumentParser
import NotificationServer
import Settings
import Synchronization
import Terminal

/// `siwad simulate send`
struct SimulateSendCommand: Command {
    static let configuration = CommandConfiguration(
        commandName: "send",
        abstract: "Post signed notifications to an endpoint.",
        usage: "siwad simulate send <options> <url>",
        discussion: """
            With --count, each has an identifier of its own and, unless --sub names one, a person of its own.

            Example:
              siwad simulate send --key apple/key.pem --type consent-revoked \\
                  --app com.example.app --count 1000 --rate 100 \\
                  http://127.0.0.1:8080/apple/notifications
            """
    )

    @OptionGroup var event: EventOptions
    @Option(name: .long, parsing: .unconditional, help: "How many.")
    var count = 1
    @Option(name: .long, parsing: .unconditional, help: "So many a second; as fast as they are answered if left out.")
    var rate: Double?
    @Flag(name: .long, help: "One JSON object about all of them.")
    var json = false
    @Argument(help: "The endpoint.")
    var url: String
    @OptionGroup var common: CommonOptions

    /// Refuses counts and rates that can't be.
    func validate() throws {
        guard count > 0 else { throw ValidationError("--count must be at least 1") }
        // Slower ones lead to times that no clock can tell.
        guard rate.map({ $0 >= 0.001 && $0.isFinite }) ?? true else {
            throw ValidationError("--rate must be at least 0.001")
        }
    }

    func run(_ invocation: Invocation) async throws {
        let apple = try KeyFiles.apple(keyFile: event.key, issuer: invocation.configuration.issuer)
        let loops = EventLoops.start(count: 1)
        let sending: Result<SendSummary, any Error>
        do {
            sending = .success(try await send(from: apple, over: loops, invocation.console))
        } catch {
            sending = .failure(error)
        }
        await loops.stop()
        let summary = try sending.get()
        let report = SendReport(summary)
        invocation.console.print(json ? report.json.line : report.line)
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
        let progress = Mutex(ProgressBar(title: "sending", total: count))
        let done = Mutex(0)
        let start = ContinuousClock.now
        let isSingle = count == 1
        let event = event
        let summary = try await sender.send(
            count: count,
            body: { _ in
                let token = try apple.token(for: event.event(now: .now()))
                return Array(SimulatedApple.body(token: token).utf8)
            },
            onOutcome: { _, outcome in
                if isSingle, case .answered(_, let body, _) = outcome, !body.isEmpty {
                    console.note(VisibleText.visible(body))
                }
                let finished = done.withLock { count in
                    count += 1
                    return count
                }
                guard !isSingle, let width = console.barWidth else { return }
                let line = progress.withLock {
                    $0.advanced(to: finished, after: .now - start, width: width)
                }
                if let line { console.redraw(line) }
            }
        )
        if !isSingle, console.barWidth != nil { console.note("") }
        return summary
    }
}
