import ArgumentParser
import Settings
import Telemetry

struct ServeCommand: DaemonCommand {
    static let configuration = CommandConfiguration(
        commandName: "serve",
        abstract: "Run the daemon: the notification endpoint and the operations endpoint.",
        discussion: """
            Every setting can be given as a flag, as SIWAD_… in the environment, or in the file of --config. After \
            SIGTERM or SIGINT, siwad stores and answers the notifications that it accepted, then exits; a second signal \
            ends it immediately. After SIGHUP, it reads the apps, issuer, leeway, policies, keys, tokens, log level and TLS \
            files again.

            Example:
              SIWAD_DATABASE_URL=postgres://siwad@localhost/app \\
                  siwad serve --apps A1B2C3D4E5/com.example.app+com.example.web
            """
    )

    @OptionGroup var options: DaemonOptions
    @OptionGroup var common: CommonOptions

    func run(_ invocation: Invocation) async throws {
        Services.endBySignals()
        let reloading = await Reloading(from: common.sources(flags: flags, environment: invocation.environment))
        let configuration = invocation.configuration
        let systemd = Systemd(environment: invocation.environment)
        try await Daemon.with(configuration) { daemon in
            let services = daemon.services(reloading: reloading, systemd: systemd, onReady: { _ in })
            let group = Services.group(services, grace: configuration.shutdownGrace, log: daemon.log)
            try await Services.run(group, grace: configuration.shutdownGrace, log: daemon.log)
        }
        Log(label: "siwad").notice("stopped")
    }
}
