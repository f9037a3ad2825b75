import AppleSimulator
import ArgumentParser
import Terminal

extension Behaviour.Endpoint: ExpressibleByArgument {}
extension SimulatedIdentity.Flags: ExpressibleByArgument {}

struct SimulateBehaveCommand: LocalAppleCommand {
    /// A claim of an identity token.
    enum Tamper: String, CaseIterable, ExpressibleByArgument {
        case sub
        case atHash = "at_hash"
    }

    static let configuration = CommandConfiguration(
        commandName: "behave",
        abstract: "Let the next requests to the simulated Apple fail.",
        usage: "siwad simulate behave [<options>]",
        discussion: """
            Example:
              siwad simulate behave --status 503 --times 2
              siwad simulate behave --cut
            """
    )

    @Option(help: ArgumentHelp("The endpoint; token if omitted.", valueName: "name"))
    var endpoint: Behaviour.Endpoint?
    @Option(parsing: .unconditional, help: ArgumentHelp("The number of requests (default: 1).", valueName: "count"))
    var times: Int64?
    @Option(parsing: .unconditional, help: ArgumentHelp("Wait before the response.", valueName: "milliseconds"))
    var delay: Int64?
    @Option(parsing: .unconditional, help: ArgumentHelp("Respond with this status.", valueName: "number"))
    var status: Int64?
    @Option(help: ArgumentHelp("Respond with this body.", valueName: "text"))
    var body: String?
    @Option(
        parsing: .unconditional,
        help: ArgumentHelp("Extend the body to this length with spaces.", valueName: "bytes")
    )
    var size: Int64?
    @Option(help: ArgumentHelp("Respond with this Content-Type.", valueName: "text"))
    var contentType: String?
    @Option(help: ArgumentHelp("Redirect to this address.", valueName: "url"))
    var location: String?
    @Option(
        parsing: .unconditional,
        help: ArgumentHelp("Throttle: 429 with this Retry-After.", valueName: "seconds")
    )
    var throttle: Int64?
    @Flag(help: "Process the request, and cut the connection in the response.")
    var cut = false
    @Flag(help: "Close the connection without processing the request.")
    var drop = false
    @Option(help: ArgumentHelp("Respond with a token whose claim does not fit.", valueName: "claim"))
    var tamper: Tamper?
    @Flag(help: "Sign with another key from now on.")
    var rotateKeys = false
    @Flag(inversion: .prefixedNo, help: "Give a person's last code for the client again at each sign-in.")
    var repeatCode: Bool?
    @Option(help: ArgumentHelp("How flags are written.", valueName: "form"))
    var flagForm: SimulatedIdentity.Flags?
    @OptionGroup var local: LocalAppleOptions

    func validate() throws {
        try validateValues()
        let answers = "a response (--status, --body, --size, --content-type, --location, --throttle)"
        let isAnswered =
            [status, size, throttle].contains { $0 != nil } || [body, contentType, location].contains { $0 != nil }
        let effects = [isAnswered, cut, drop, tamper != nil].count { $0 }
        guard effects <= 1 else { throw ValidationError("choose one of \(answers), --cut, --drop and --tamper") }
        guard tamper == nil || endpoint == nil || endpoint == .token else {
            throw ValidationError("--tamper changes a token: leave --endpoint out, or write --endpoint token")
        }
        guard effects == 0, delay == nil else { return }
        let step = "add --delay, \(answers), --cut, --drop"
        guard endpoint == nil, times == nil else {
            throw ValidationError("--endpoint and --times need an effect: \(step) or --tamper")
        }
        guard rotateKeys || repeatCode != nil || flagForm != nil else {
            throw ValidationError(
                "nothing would change: \(step), --tamper, --rotate-keys, --repeat-code, --no-repeat-code or --flag-form"
            )
        }
    }

    private func validateValues() throws {
        let numbers = [
            ("--times", times, Behaviour.Limits.times), ("--delay", delay, Behaviour.Limits.delay),
            ("--status", status, Behaviour.Limits.status), ("--size", size, Behaviour.Limits.size),
            ("--throttle", throttle, Behaviour.Limits.retryAfter),
        ]
        for (name, number, range) in numbers {
            guard number.map({ range.contains($0) }) ?? true else {
                throw ValidationError("\(name) must be from \(range.lowerBound) to \(range.upperBound)")
            }
        }
        for (name, text) in [("--content-type", contentType), ("--location", location)] {
            guard text?.utf8.allSatisfy({ 0x20...0x7E ~= $0 }) ?? true else {
                throw ValidationError("\(name) must be visible ASCII")
            }
        }
    }

    func run(_ invocation: Invocation) async throws {
        let answer = try await local.perform(
            .behave,
            [
                ("endpoint", (endpoint?.rawValue).map(JSONText.string)), ("times", times.map(JSONText.integer)),
                ("delay_ms", delay.map(JSONText.integer)), ("status", status.map(JSONText.integer)),
                ("body", body.map(JSONText.string)), ("size", size.map(JSONText.integer)),
                ("content_type", contentType.map(JSONText.string)), ("location", location.map(JSONText.string)),
                ("retry_after", throttle.map(JSONText.integer)), ("cut", cut ? .bool(true) : nil),
                ("drop", drop ? .bool(true) : nil), ("tamper", (tamper?.rawValue).map(JSONText.string)),
                ("rotate_keys", rotateKeys ? .bool(true) : nil), ("repeat_code", repeatCode.map(JSONText.bool)),
                ("flags", (flagForm?.rawValue).map(JSONText.string)),
            ],
            invocation
        )
        invocation.console.print(answer)
    }
}
