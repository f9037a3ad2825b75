import Glibc
import UnixSignals

/// Work that SIGINT ends in good order.
enum Interruption {
    /// Runs `work`, cancelled at SIGINT; once it has ended, the process ends as the signal would have ended it, so that a
    /// shell or a script sees what happened.
    ///
    /// - Throws: what `work` throws.
    static func endsAfter(_ work: @escaping @Sendable () async throws -> Void) async throws {
        try await withThrowingTaskGroup(of: Bool.self) { group in
            group.addTask {
                try await work()
                return false
            }
            group.addTask {
                for await _ in await UnixSignalsSequence(trapping: .sigint) { return true }
                return false
            }
            let isInterrupted = try await group.next() ?? false
            group.cancelAll()
            guard isInterrupted else { return }
            // How the work ends once it is cancelled, it has said itself.
            _ = try? await group.next()
            endBySignal()
        }
    }

    private static func endBySignal() -> Never {
        signal(SIGINT, SIG_DFL)
        var signals = sigset_t()
        sigemptyset(&signals)
        sigaddset(&signals, SIGINT)
        pthread_sigmask(SIG_UNBLOCK, &signals, nil)
        raise(SIGINT)
        _exit(128 + SIGINT)
    }
}
