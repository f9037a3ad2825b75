import Glibc
import ServiceLifecycle
import Telemetry
import Terminal
import UnixSignals

/// A part of the process that runs until the shutdown.
struct NamedService: Service, CustomStringConvertible {
    let description: String
    /// True if the group shuts down when the work is done. If another service ends by itself, that is an error.
    let endsGroup: Bool
    private let end: @Sendable () -> Void
    private let work: @Sendable () async throws -> Void

    /// - Parameter end: ends the work, at a graceful shutdown or at cancellation; without it, the work ends by itself.
    init(
        _ name: String,
        endsGroup: Bool = false,
        endedBy end: @escaping @Sendable () -> Void = {},
        _ work: @escaping @Sendable () async throws -> Void
    ) {
        self.description = name
        self.endsGroup = endsGroup
        self.end = end
        self.work = work
    }

    func run() async throws {
        try await withTaskCancellationHandler {
            try await withGracefulShutdownHandler(operation: work, onGracefulShutdown: end)
        } onCancel: {
            end()
        }
    }
}

/// Runs services, which start in order and shut down in reverse order.
enum Services {
    /// Makes SIGTERM and SIGINT end the process with 0 until ``run(_:grace:log:repeats:)`` handles them: the first process of a
    /// container ignores a signal without a handler.
    static func endBySignals() {
        for number in [SIGINT, SIGTERM] { signal(number) { _ in _exit(CommandStatus.done.rawValue) } }
    }

    /// Runs a group until SIGTERM or SIGINT, or until a service fails. A second signal ends the process immediately.
    ///
    /// - Parameters:
    ///   - grace: of the group; a warning says if it passed.
    ///   - repeats: for so long, a second signal counts as the first: a terminal and a script may both send one.
    static func run(
        _ group: ServiceGroup,
        grace: Duration? = nil,
        log: Log,
        repeats: Duration = .zero
    ) async throws {
        let signals = await UnixSignalsSequence(trapping: .sigterm, .sigint)
        let shutdown = try await withThrowingTaskGroup(of: ContinuousClock.Instant?.self) { tasks in
            tasks.addTask {
                var first: ContinuousClock.Instant?
                for await _ in signals {
                    let now = ContinuousClock.now
                    guard let first else {
                        first = now
                        await group.triggerGracefulShutdown()
                        continue
                    }
                    guard now - first >= repeats else { continue }
                    log.warning("ended immediately by a second signal; requests without a response may be lost")
                    // Without exit handlers, which could wait for the part that hangs.
                    _exit(CommandStatus.failed.rawValue)
                }
                return first
            }
            try await group.run()
            tasks.cancelAll()
            return try await tasks.next() ?? nil
        }
        // The group cancels services that have not ended by then, and does not report it.
        if let grace, let shutdown, .now - shutdown >= grace {
            log.warning("the grace period ended; requests without a response may be lost")
        }
    }

    /// - Parameter grace: the time after which services that have not ended are cancelled.
    static func group(_ services: [NamedService], grace: Duration, log: Log) -> ServiceGroup {
        var configuration = ServiceGroupConfiguration(
            // The failure of one service shuts the others down gracefully.
            services: services.map {
                .init(
                    service: $0,
                    successTerminationBehavior: $0.endsGroup ? .gracefullyShutdownGroup : .cancelGroup,
                    failureTerminationBehavior: .gracefullyShutdownGroup
                )
            },
            logger: log.quieter(than: .warning).logger
        )
        configuration.maximumGracefulShutdownDuration = grace
        return ServiceGroup(configuration: configuration)
    }

    /// Runs `work` until it ends, or cancels it at SIGINT or SIGTERM, which end the command successfully.
    static func runUntilSignal(_ work: @escaping @Sendable () async throws -> Void) async throws {
        try await withThrowingTaskGroup { group in
            group.addTask { try await work() }
            group.addTask {
                for await _ in await UnixSignalsSequence(trapping: .sigint, .sigterm) {
                    // Cancellation does not end a write that waits for a slow reader.
                    signal(SIGALRM) { _ in _exit(CommandStatus.done.rawValue) }
                    alarm(2)
                    break
                }
            }
            try await group.next()
            group.cancelAll()
        }
    }

    /// Runs `work` and cancels it at SIGINT or SIGTERM. When it has ended, the process ends by the signal itself, so that a shell
    /// sees the cause. A second signal ends the process immediately.
    ///
    /// - Parameter isReading: the work changes nothing, so that it need not end in an orderly way.
    static func runInterruptibly(
        isReading: Bool = false,
        _ work: @escaping @Sendable () async throws -> Void
    ) async throws {
        // Every command that changes something in several transactions runs here. If the reader of its output is gone,
        // SIGPIPE would end it between two of them. Without the signal, it goes on without output.
        signal(SIGPIPE, SIG_IGN)
        try await withThrowingTaskGroup(of: UnixSignal?.self) { group in
            group.addTask {
                try await work()
                return nil
            }
            group.addTask {
                for await received in await UnixSignalsSequence(trapping: .sigint, .sigterm) { return received }
                return nil
            }
            let received: UnixSignal? = try await group.next() ?? nil
            group.cancelAll()
            guard let number = received?.rawValue else { return }
            // The work may be unable to end, such as a COMMIT that waits for a standby. The first process of a container
            // ignores a signal without a handler.
            for number in [SIGINT, SIGTERM] { signal(number) { _exit(128 + $0) } }
            unblockSignals()
            if isReading {
                // Cancellation does not end a write that waits for a slow reader.
                if number == SIGINT {
                    signal(SIGALRM) { _ in _exit(128 + SIGINT) }
                } else {
                    signal(SIGALRM) { _ in _exit(128 + SIGTERM) }
                }
                alarm(2)
            }
            // The cancelled work has already reported how it ended.
            _ = try? await group.next()
            signal(number, SIG_DFL)
            unblockSignals()
            raise(number)
            _exit(128 + number)
        }
    }

    /// For the present thread.
    private static func unblockSignals() {
        var signals = sigset_t()
        sigemptyset(&signals)
        for number in [SIGINT, SIGTERM] { sigaddset(&signals, number) }
        pthread_sigmask(SIG_UNBLOCK, &signals, nil)
    }
}
