import AccountStore
import AppleClient
import AppleTokens
import Ingest
import JOSE
import NotificationServer
import Postgres
import ServiceLifecycle
import Settings
import Spool
import Telemetry
import Terminal

/// The daemon: all its parts, put together from the configuration.
struct Daemon: Sendable {
    /// What is in force.
    let configuration: Configuration
    /// From bodies to answers.
    let intake: Intake
    /// Connections beside the writer's.
    let pool: ConnectionPool
    /// The connection on which readiness is found out: whoever asks wants an answer at once, also when all others are
    /// stuck on a wire that is dead. nil: there may be no more connections than the writer needs, and one other.
    let probes: ConnectionPool?
    /// The threads of the network.
    let loops: EventLoops
    /// Where the parts write what happens.
    let log: Log

    /// Group commit.
    let writer: NotificationWriter
    /// What dashboards see.
    let metrics: SiwadMetrics
    /// For TLS on the notification endpoint.
    let certificates: ServerCertificates?
    private let settings: ConnectionSettings
    private let trust: SigningKeys.Trust
    private let upkeep: Upkeep
    /// How far its start and its end have come.
    let state = DaemonState()

    /// Puts the parts together; reads the TLS files, opens and locks the spool, connects to nothing.
    /// - Throws: `SettingsError`, `ServerError`, `SpoolError`.
    init(_ configuration: Configuration) throws {
        self.configuration = configuration
        settings = try configuration.connectionSettings()
        let audiences = try configuration.audiences()
        certificates = try configuration.tls.map {
            try ServerCertificates(certificateFile: $0.certificate, keyFile: $0.key)
        }
        log = Log(label: "siwad")
        metrics = SiwadMetrics(version: Version.current, appIDs: audiences.groups.map(\.app.rawValue))
        let spool = try configuration.spoolDirectory.map { path throws(SpoolError) in
            try Spool(directory: path, limit: configuration.spoolLimit)
        }
        // The writer has a connection of its own, and another one while it empties the spool.
        let others = configuration.databaseConnections - configuration.leastDatabaseConnections + 1
        pool = ConnectionPool(settings, maximum: max(1, others - 1))
        probes =
            others > 1 ? ConnectionPool(Self.impatient(settings), maximum: 1, acquireTimeout: .seconds(1)) : nil
        loops = EventLoops.start()
        upkeep = Upkeep(
            pool: pool,
            policy: MaintenancePolicy(
                retention: configuration.retention,
                sessionRetention: configuration.sessionRetention,
                eraseAfter: configuration.eraseAfter
            ),
            metrics: MaintenanceMetrics(registry: metrics.registry),
            log: log
        )
        trust = try configuration.keyTrust()
        let fetcher = KeySetFetcher(
            url: try configuration.keySetURL(),
            version: Version.current,
            eventLoopGroup: loops.group
        )
        let keys = KeyRing(
            refresh: configuration.keysRefresh,
            floor: configuration.keysRefreshFloor,
            burst: configuration.keysRefreshBurst,
            maximumAge: configuration.keysMaximumAge,
            source: .init(fetcher: fetcher, trust: trust, pool: pool),
            metrics: metrics,
            log: log
        )
        var limits = Intake.Limits()
        limits.batch = configuration.batchLimit
        limits.queue = configuration.queueLimit
        limits.queueBytes = Int(configuration.queueBytes)
        limits.deadLetters = configuration.deadLetterLimit
        limits.retention = configuration.retention
        intake = Intake(
            policy: try configuration.policy(),
            keys: keys,
            spool: spool,
            limits: limits,
            metrics: metrics,
            log: log
        )
        writer = NotificationWriter(intake: intake, settings: settings, trust: trust)
    }

    /// Sees to it that the database is there and has the schema of this binary; changes nothing. With a spool a database
    /// that is away can wait: it is looked at, and told the apps, as soon as it is back.
    /// - Throws: `PostgresError`; `CommandFailure` for another schema.
    func prepare() async throws {
        try await unlessAway { try await Self.checkSchema(settings) }
    }

    /// Tells the database the apps in force, once it is certain that this daemon is the one that serves them: one that
    /// ends because another has its port leaves that one's apps alone.
    /// - Throws: `PostgresError`.
    func announceApps() async throws {
        guard !state.waitsForDatabase else { return }
        try await unlessAway { try await synchronizeClients() }
    }

    /// Does something with the database now or, with a spool, everything as soon as it is back.
    private func unlessAway(_ work: () async throws -> Void) async throws {
        do {
            try await work()
        } catch let error as PostgresError where configuration.spoolDirectory != nil && error.meansAway {
            log.warning(
                "PostgreSQL is away; starting without it, notifications wait in the spool",
                ["error": "\(error)"]
            )
            state.databaseIsAway()
            prepareWithNextConnection()
        }
    }

    /// Has the database told, before anything else is stored, what it is told at the start.
    func prepareWithNextConnection() {
        // Without the rest of the daemon, of which the writer is a part: it would hold itself.
        writer.prepareAgain { [settings, pool, intake] in
            try await Self.prepareDatabase(settings, pool, intake)
        }
    }

    /// Checks the schema, and tells the database the apps in force.
    private static func prepareDatabase(
        _ settings: ConnectionSettings,
        _ pool: ConnectionPool,
        _ intake: Intake
    ) async throws {
        try await checkSchema(settings)
        try await synchronizeClients(pool, intake)
    }

    private static func checkSchema(_ settings: ConnectionSettings) async throws {
        try await SchemaState.read(settings).check()
    }

    /// Tells the database the apps in force.
    func synchronizeClients() async throws(PostgresError) {
        try await Self.synchronizeClients(pool, intake)
    }

    private static func synchronizeClients(_ pool: ConnectionPool, _ intake: Intake) async throws(PostgresError) {
        let audiences = intake.policy.audiences
        try await pool.transaction { session throws(PostgresError) in
            try Clients.add(audiences, in: session)
        }
    }

    /// For a question that is answered within two seconds, or not at all.
    private static func impatient(_ settings: ConnectionSettings) -> ConnectionSettings {
        var settings = settings
        settings.connectTimeout = .seconds(1)
        settings.deadline = .seconds(1)
        settings.grace = .milliseconds(500)
        return settings
    }

    /// Gives back what the parts hold. Call it once their services have ended. The event loops end with the process: a
    /// connection that is still being closed may want them, and nobody else does.
    func close() async {
        await probes?.close()
        await pool.close()
    }

    /// What runs, in the order of the start; the shut-down goes the other way, so the endpoint ends first and what it
    /// accepted is stored and answered before the writer ends.
    ///
    /// - Parameters:
    ///   - reloading: what SIGHUP reads; nil leaves the signal alone.
    ///   - onReady: called once, when notifications can be accepted durably.
    func services(
        reloading: Reloading? = nil,
        onReady: @escaping @Sendable (DaemonAddresses) async -> Void
    ) -> [NamedService] {
        let (intake, state, writer, upkeep) = (intake, state, writer, upkeep)
        let keys = intake.keys
        let maintenance = IntakeMaintenance(intake: intake, pool: pool, trust: trust)
        let reload = reloading.map { reloading in
            NamedService("reload") { await cancelWhenGracefulShutdown { await reloadAtSignal(reloading) } }
        }
        return [reload].compactMap(\.self) + [
            NamedService("keys", endedBy: { keys.stop() }) {
                await state.afterEndpointsOpened { await keys.run() }
            },
            NamedService("maintenance") {
                await state.afterEndpointsOpened { await cancelWhenGracefulShutdown { await maintenance.run() } }
            },
            NamedService("upkeep") {
                await state.afterEndpointsOpened {
                    // With the database there and known to have this binary's schema.
                    await cancelWhenGracefulShutdown { await upkeep.run { intake.storage == .database } }
                }
            },
            NamedService("writer", endedBy: { writer.finish() }) {
                try await state.afterEndpointsOpened {
                    do {
                        // Somebody's lock may hold it up for longer than whoever ends the daemon wants to wait.
                        try await cancelWhenGracefulShutdown { try await announceApps() }
                    } catch {
                        // What came in meanwhile is answered all the same.
                        writer.finish()
                        await writer.run()
                        if (error as? PostgresError)?.code == .cancelled { return }
                        throw error
                    }
                    await writer.run()
                }
            },
            operationsServer,
            NamedService("notifications", notificationServer.run),
            // The last to start is the first to end: whoever asks is told, while the endpoint still accepts.
            NamedService("readiness") {
                await cancelWhenGracefulShutdown { await announceReadiness(to: onReady) }
                await state.beginDraining(within: configuration.shutdownGrace / 3)
            },
        ]
    }

    private var operationsServer: NamedService {
        let state = state
        let server = OperationsServer(
            address: configuration.operationsAddress,
            eventLoops: loops,
            log: log,
            onRunning: { state.operationsOpened(port: $0) },
            metrics: metrics.registry,
            readiness: {
                state.readinessAsked()
                return await checks()
            }
        )
        return NamedService("operations") { try await state.afterNotificationsOpened(server.run) }
    }

    private var notificationServer: NotificationServer {
        let (intake, state) = (intake, state)
        return NotificationServer(
            address: configuration.notificationAddress,
            path: configuration.notificationPath,
            certificates: certificates,
            metrics: metrics,
            eventLoops: loops,
            log: log,
            onRunning: { state.notificationsOpened(port: $0) }
        ) { deliver in
            let lane = IntakeLane(intake: intake, deliver: deliver)
            return { body, ticket in lane.receive(body, ticket: ticket) }
        }
    }
}

extension PostgresError {
    /// Whether the database may be back later without anybody changing the configuration.
    fileprivate var meansAway: Bool {
        switch sqlState?.classCode {
        case "28", "3D": false
        case "25": true
        default: isConnectionError || isRetryable
        }
    }
}
