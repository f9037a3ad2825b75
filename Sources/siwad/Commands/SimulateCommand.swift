import ArgumentParser

/// `siwad simulate`: Apple, wherever there is none.
struct SimulateCommand: ParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "simulate",
        abstract: "Stand in for Apple: keys, their publication, signed notifications.",
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
