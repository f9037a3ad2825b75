import ServiceLifecycle
import Settings
import Synchronization

/// The addresses of the daemon, with the ports that the system chose.
struct DaemonAddresses: Sendable, Equatable {
    let notifications: String
    /// The URL of the operations endpoint, without a path.
    let operations: String
    let listening: [SettingKey: String]
}

/// The progress of the daemon's start and shutdown, shared by its services.
final class DaemonState: Sendable {
    private struct Progress {
        var notificationPort: Int?
        var operationsPort: Int?
        var isDraining = false
        var readinessAskedAt: ContinuousClock.Instant?
        var database: String?
        var reloaded: Configuration?
        /// Settings that a restart would take from it.
        var ignored: Set<SettingKey> = []
    }

    /// Opens when the notification endpoint accepts connections, so that a port in use ends the start before anything else
    /// has begun.
    let notificationsOpen = Gate()
    /// Opens when the application endpoint accepts connections, or if there is none.
    let applicationOpen = Gate()
    let endpointsOpen = Gate()
    /// True once the database had the schema of this binary. A later migration does not matter to a daemon that runs.
    let hasCheckedSchema = Atomic(false)
    private let progress = Mutex(Progress())
    /// Opens when a readiness probe was answered that the shutdown has begun.
    private let drainingReported = Gate()

    func notificationsOpened(port: Int) {
        progress.withLock { $0.notificationPort = port }
        notificationsOpen.open()
    }

    /// The operations endpoint opens last.
    func operationsOpened(port: Int) {
        progress.withLock { $0.operationsPort = port }
        endpointsOpen.open()
    }

    func readinessAsked() {
        progress.withLock { $0.readinessAskedAt = .now }
    }

    /// The database answered.
    func databaseIdentified(_ identity: String?) {
        progress.withLock { $0.database = identity ?? $0.database }
    }

    /// - Parameter ignored: reloadable settings that this daemon applies only with a restart.
    func reloaded(_ configuration: Configuration, ignoring ignored: Set<SettingKey>) {
        progress.withLock { ($0.reloaded, $0.ignored) = (configuration, ignored) }
    }

    /// The configuration that SIGHUP read last, else the given one of the start.
    func current(_ configuration: Configuration) -> Configuration {
        progress.withLock { $0.reloaded } ?? configuration
    }

    func instance(_ configuration: Configuration) -> Instance {
        let (database, reloaded, ignored) = progress.withLock { ($0.database, $0.reloaded, $0.ignored) }
        return Instance(database: database, settings: configuration.digest(reloading: reloaded, ignoring: ignored))
    }

    /// True once the shutdown has begun. Call it only to answer a readiness probe: ``beginDraining(within:)`` waits for that.
    func reportDraining() -> Bool {
        let isDraining = progress.withLock { $0.isDraining }
        if isDraining { drainingReported.open() }
        return isDraining
    }

    /// The shutdown has begun: readiness probes fail from here on.
    ///
    /// Returns once a load balancer has seen this and had a second to route requests elsewhere, so that it sends none to a
    /// closed endpoint. Returns immediately if nothing probes readiness.
    ///
    /// - Parameter limit: the maximum time that it takes.
    func beginDraining(within limit: Duration) async {
        let askedAt = progress.withLock { progress in
            progress.isDraining = true
            return progress.readinessAskedAt
        }
        // After 30 s without a probe, there is no load balancer.
        guard let askedAt, .now - askedAt < .seconds(30) else { return }
        let reported = drainingReported
        await withTaskGroup { group in
            group.addTask {
                if await reported.wait() { try? await Task.sleep(for: .seconds(1)) }
            }
            // The first of the two ends the wait; the cancelled sleep throws, which is its normal end.
            group.addTask { try? await Task.sleep(for: limit) }
            await group.next()
            group.cancelAll()
        }
    }

    /// nil until both endpoints accept connections.
    func addresses(_ configuration: Configuration) -> DaemonAddresses? {
        let ports = progress.withLock { ($0.notificationPort, $0.operationsPort) }
        guard let notificationPort = ports.0, let operationsPort = ports.1 else { return nil }
        let notifications = HostAndPort(host: configuration.listen.host, port: notificationPort)
        let operations = HostAndPort(host: configuration.operationsListen.host, port: operationsPort)
        return DaemonAddresses(
            notifications: "\(configuration.tls == nil ? "http" : "https")://\(notifications)"
                + configuration.notificationPath,
            operations: "http://\(operations)",
            listening: [.listen: notifications.description, .operationsListen: operations.description]
        )
    }
}

/// Lets tasks wait until it opens.
final class Gate: Sendable {
    private struct State {
        var isOpen = false
        var waiters: [AsyncStream<Never>.Continuation] = []
    }

    private let state = Mutex(State())

    /// Resumes all waiting tasks; later ones do not wait.
    func open() {
        let waiters = state.withLock { state in
            state.isOpen = true
            let waiters = state.waiters
            state.waiters = []
            return waiters
        }
        for waiter in waiters { waiter.finish() }
    }

    /// - Returns: false if the task was cancelled before the gate opened.
    func wait() async -> Bool {
        let (stream, continuation) = AsyncStream<Never>.makeStream()
        let isOpen = state.withLock { state in
            if !state.isOpen { state.waiters.append(continuation) }
            return state.isOpen
        }
        if isOpen { return true }
        for await _ in stream {}
        return state.withLock { $0.isOpen }
    }

    /// Runs `work` once the gate is open, unless the shutdown comes first.
    func whenOpen(_ work: @Sendable () async throws -> Void) async rethrows {
        if await cancelWhenGracefulShutdown({ await self.wait() }) { try await work() }
    }
}
