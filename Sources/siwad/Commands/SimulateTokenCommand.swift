import AppleTokens
import AppleSimulator
import ArgumentParser
import Settings
import Terminal

/// `siwad simulate token`
struct SimulateTokenCommand: Command {
    static let configuration = CommandConfiguration(
        commandName: "token",
        abstract: "Print a signed notification in Apple's wire shape.",
        usage: "siwad simulate token <options>",
        discussion: """
            Example:
              siwad simulate token --key apple/key.pem --type account-deleted \\
                  --app com.example.app --sub 000768.6166f031167141e695698239959f591a.1521
            """
    )

    @OptionGroup var event: EventOptions
    @Flag(name: .long, help: "Print the whole body of the request: {\"payload\":…}.")
    var body = false
    @OptionGroup var common: CommonOptions

    func run(_ invocation: Invocation) async throws {
        let apple = try KeyFiles.apple(keyFile: event.key, issuer: invocation.configuration.issuer)
        let token = try apple.token(for: event.event(now: .now()))
        invocation.console.print(body ? SimulatedApple.body(token: token) : token)
    }
}
