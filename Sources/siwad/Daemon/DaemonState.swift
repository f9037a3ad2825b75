import ServiceLifecycle
import Settings
import Synchronization

/// Where the daemon can be reached, with the ports that the system chose.
struct DaemonAddresses: Sendable, Equatable {
    /// The URL of the notification endpoint.
    let notifications: String
    /// The URL of the operations endpoint, without a path.
    let operations: String
    /// The settings that name these addresses.
    let listening: [SettingKey: String]
}

/// What the daemon's parts tell each other about its start and end.
final class DaemonState: Sendable {
    private struct Progress {
        var notificationPort: Int?
        var operationsPort: Int?
        var waitsForDatabase = false
        var isDraining = false
        /// When `/readyz` was last asked.
        var readinessAskedAt: ContinuousClock.Instant?
    }

    private let progress = Mutex(Progress())
    /// Opened when the notification endpoint accepts connections.
    private let notificationsOpen = Gate()
    /// Opened when somebody was told that the shut-down has begun.
    private let drainingTold = Gate()
    /// Opened when both endpoints do.
    private let endpointsOpen = Gate()

    /// The notification endpoint accepts connections.
    func notificationsOpened(port: Int) {
        progress.withLock { $0.notificationPort = port }
        notificationsOpen.open()
    }

    /// The operations endpoint accepts connections.
    func operationsOpened(port: Int) {
        progress.withLock { $0.operationsPort = port }
        endpointsOpen.open()
    }

    /// The database was away at the start: the writer prepares it when it is back.
    func databaseIsAway() {
        progress.withLock { $0.waitsForDatabase = true }
    }

    /// Whether the database was away at the start.
    var waitsForDatabase: Bool { progress.withLock { $0.waitsForDatabase } }

    /// Somebody asks whether notifications can be accepted.
    func readinessAsked() {
        progress.withLock { $0.readinessAskedAt = .now }
    }

    /// Whether the shut-down has begun, for an answer to somebody who asked: who is told that it has counts as told, also
    /// if it began between the question and the answer.
    func tellWhetherDraining() -> Bool {
        let isDraining = progress.withLock { $0.isDraining }
        if isDraining { drainingTold.open() }
        return isDraining
    }

    /// The shut-down has begun: whoever asks is told from here on.
    ///
    /// Returns once a load balancer that asks from time to time was told and could turn to others, so that it sends nothing
    /// to an endpoint that is closed; at once where nobody asks.
    ///
    /// - Parameter limit: the longest that it may take.
    func beginDraining(within limit: Duration) async {
        let askedAt = progress.withLock { progress in
            progress.isDraining = true
            return progress.readinessAskedAt
        }
        guard let askedAt, .now - askedAt < Self.longestProbeInterval else { return }
        let told = drainingTold
        await withTaskGroup { group in
            group.addTask {
                if await told.wait() { try? await Task.sleep(for: Self.timeToTurnAway) }
            }
            // Whichever comes first; a cancelled sleep is the wanted end of it.
            group.addTask { try? await Task.sleep(for: limit) }
            await group.next()
            group.cancelAll()
        }
    }

    /// Who asked so long ago doesn't ask any more.
    private static let longestProbeInterval = Duration.seconds(30)
    /// What whoever was told needs to act on it.
    private static let timeToTurnAway = Duration.seconds(1)

    /// Runs `work` once the notification endpoint accepts connections, so that a port that is taken ends the start
    /// before anything else has begun; not at all if the end comes first.
    func afterNotificationsOpened(_ work: @Sendable () async throws -> Void) async throws {
        let gate = notificationsOpen
        if await cancelWhenGracefulShutdown({ await gate.wait() }) { try await work() }
    }

    /// Runs `work` once both endpoints accept connections; not at all if the end comes first.
    func afterEndpointsOpened(_ work: @Sendable () async throws -> Void) async rethrows {
        let gate = endpointsOpen
        if await cancelWhenGracefulShutdown({ await gate.wait() }) { try await work() }
    }

    /// The addresses, once both endpoints accept connections.
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
