import AppleSimulator
import ArgumentParser
import Terminal

/// `siwad simulate keys`
struct SimulateKeysCommand: Command {
    static let configuration = CommandConfiguration(
        commandName: "keys",
        abstract: "Write a private key and its key set.",
        usage: "siwad simulate keys --out <dir> [<options>]",
        discussion: """
            Writes DIR/key.pem, readable by you only, and DIR/keys.json. A key that is there stays.

            Example:
              siwad simulate keys --out apple
              SIWAD_KEYS_URL=file://$PWD/apple/keys.json siwad serve
            """
    )

    @Option(name: .long, help: ArgumentHelp("Directory; made if it isn't there.", valueName: "dir"))
    var out: String
    @Flag(name: .long, help: "One JSON object.")
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
