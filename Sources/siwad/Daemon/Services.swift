import Glibc
import ServiceLifecycle
import Telemetry
import Terminal
import UnixSignals

/// A part of the process that runs until it is told to end.
struct NamedService: Service, CustomStringConvertible {
    /// For the log.
    let description: String
    private let work: @Sendable () async throws -> Void

    /// A service of this work, which must end at a graceful shutdown by itself.
    init(_ name: String, _ work: @escaping @Sendable () async throws -> Void) {
        self.description = name
        self.work = work
    }

    /// A service whose work ends when it is asked to, by `end`; also at cancellation, so that nothing can hang.
    init(
        _ name: String,
        endedBy end: @escaping @Sendable () -> Void,
        _ work: @escaping @Sendable () async throws -> Void
    ) {
        self.init(
            name,
            {
                try await withTaskCancellationHandler {
                    try await withGracefulShutdownHandler(operation: work, onGracefulShutdown: end)
                } onCancel: {
                    end()
                }
            }
        )
    }

    /// Runs until the end.
    func run() async throws {
        try await work()
    }
}

/// The process's services, started in order and shut down in reverse.
enum Services {
    /// Runs them until SIGTERM or SIGINT, or until one of them fails.
    /// - Parameter grace: how long they may take to end; then they are cancelled.
    static func run(_ services: [NamedService], grace: Duration, log: Log) async throws {
        try await run(group(services, grace: grace, log: log), log: log)
    }

    /// Runs a group of them; a second SIGTERM or SIGINT ends the process at once.
    static func run(_ group: ServiceGroup, log: Log) async throws {
        try await withThrowingTaskGroup { tasks in
            tasks.addTask { await endAtSecondSignal(log) }
            try await group.run()
            tasks.cancelAll()
        }
    }

    /// Ends the process at the second SIGTERM or SIGINT: whoever sends it doesn't want to wait for the first.
    private static func endAtSecondSignal(_ log: Log) async {
        var isFirst = true
        for await _ in await UnixSignalsSequence(trapping: .sigterm, .sigint) {
            if !isFirst {
                log.warning("ended at once by a second signal; what was not answered yet may be lost to its sender")
                // Without the handlers of an orderly end, which might wait for what hangs.
                _exit(CommandStatus.failed.rawValue)
            }
            isFirst = false
        }
    }

    /// The group of them, for those who end it themselves.
    static func group(_ services: [NamedService], grace: Duration, log: Log) -> ServiceGroup {
        var configuration = ServiceGroupConfiguration(
            // What one of them can't do ends the others in good order.
            services: services.map { .init(service: $0, failureTerminationBehavior: .gracefullyShutdownGroup) },
            gracefulShutdownSignals: [.sigterm, .sigint],
            logger: log.quieter(than: .warning).logger
        )
        configuration.maximumGracefulShutdownDuration = grace
        return ServiceGroup(configuration: configuration)
    }
}
