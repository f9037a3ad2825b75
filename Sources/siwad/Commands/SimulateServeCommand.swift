import AppleSimulator
import ArgumentParser
import NotificationServer
import Settings
import Telemetry
import Terminal

/// `siwad simulate serve`
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

    @Option(name: .long, help: ArgumentHelp("Private key, as simulate keys writes it.", valueName: "file"))
    var key: String
    @Option(name: .long, help: ArgumentHelp("Address to listen on.", valueName: "host:port"))
    var listen = "127.0.0.1:8081"
    @OptionGroup var common: CommonOptions

    func run(_ invocation: Invocation) async throws {
        let apple = try KeyFiles.apple(keyFile: key, issuer: invocation.configuration.issuer)
        let address = try ListenAddress(parsing: listen, setting: "--listen")
        let loops = EventLoops.start(count: 1)
        let log = Log(label: "siwad")
        let console = invocation.console
        let server = KeySetServer(
            address: address,
            keySet: Array(apple.keySetJSON.utf8),
            eventLoops: loops,
            log: log,
            onRunning: { port in
                let bound = ListenAddress(host: address.host, port: port)
                console.print("http://\(bound)/auth/keys  kid \(apple.keyID), until Ctrl-C")
            }
        )
        do {
            try await Services.run([NamedService("key set", server.run)], grace: .seconds(1), log: log)
        } catch {
            throw ListenAddress.failure(error, of: [address])
        }
        await loops.stop()
    }
}
