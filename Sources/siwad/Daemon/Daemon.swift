import AccountStore
import AppleTokens
import Basics
import Effects
import Ingest
import JOSE
import Listening
import NotificationServer
import Postgres
import ServiceLifecycle
import Settings
import SignInFlow
import Spool
import Synchronization
import Telemetry
import UnixSignals
import WebClient
import WebServer

/// The daemon: creates all parts from the configuration and connects them.
struct Daemon: Sendable {
    let configuration: Configuration
    let intake: IngestService
    let pool: ConnectionPool
    /// The connection of the readiness check, which must answer within seconds even if all other connections hang. Between two
    /// checks it listens to the publications of other daemons. nil if the configured number of connections leaves none.
    let probes: ConnectionPool?
    let loops: EventLoops
    let log: Log

    let writer: NotificationWriter
    let metrics: SiwadMetrics
    /// nil without TLS on the notification endpoint.
    let certificates: ServerCertificates?
    private let settings: ConnectionSettings
    private let trust: SigningKeys.Trust
    private let maintenance: MaintenanceService
    /// nil if SIWAD_EFFECTS is off.
    private let publisher: Publisher?
    /// nil if SIWAD_EFFECTS is off.
    let dispatcher: Dispatcher?
    /// nil if it neither serves applications nor trades codes.
    let signIn: SignInParts?
    let resolver = Resolver()
    let state = DaemonState()

    static func with(_ configuration: Configuration, _ body: (Daemon) async throws -> Void) async throws {
        let daemon = try Daemon(configuration)
        try await withCleanup(daemon.close) {
            do {
                try await daemon.prepare()
                try await body(daemon)
            } catch {
                let addresses = [configuration.notificationAddress, configuration.operationsAddress]
                throw ListenAddress.failure(error, of: addresses)
            }
        }
    }

    /// Reads the TLS files, opens and locks the spool; makes no connection.
    /// - Throws: `SettingsError`, `ServerError`, `SpoolError`.
    init(_ configuration: Configuration) throws {
        try configuration.checkServing()
        self.configuration = configuration
        let audiences: AudienceMap
        (settings, audiences) = try configuration.databaseAndApps()
        certificates = try configuration.tls.map {
            try ServerCertificates(certificateFile: $0.certificate, keyFile: $0.key)
        }
        log = Log(label: "siwad")
        metrics = SiwadMetrics(version: Version.current, appIDs: audiences.groups.map(\.app.rawValue))
        let spool = try configuration.spoolDirectory.map { path throws(SpoolError) in
            try Spool(directory: path, limit: configuration.spoolLimit)
        }
        // The writer has its own connection, and another one while it drains the spool.
        let others = configuration.databaseConnections - configuration.leastDatabaseConnections + 1
        pool = ConnectionPool(settings, maximum: max(1, others - 1))
        // With these settings, a query ends within two seconds.
        var impatient = settings
        impatient.connectTimeout = .seconds(1)
        impatient.deadline = .seconds(1)
        impatient.grace = .milliseconds(500)
        probes = others > 1 ? ConnectionPool(impatient, maximum: 1, acquireTimeout: .seconds(1)) : nil
        loops = EventLoops.start()
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
        var limits = IngestService.Limits()
        limits.batch = configuration.batchLimit
        limits.queue = configuration.queueLimit
        limits.queueBytes = Int(configuration.queueBytes)
        limits.deadLetters = configuration.deadLetterLimit
        limits.retention = configuration.retention
        let changes = WakeupEvent()
        intake = IngestService(
            policy: try configuration.policy(),
            keys: keys,
            spool: spool,
            limits: limits,
            metrics: metrics,
            log: log,
            changes: changes
        )
        writer = NotificationWriter(service: intake, settings: settings, trust: trust)
        maintenance = MaintenanceService(
            service: intake,
            pool: pool,
            trust: trust,
            policy: MaintenancePolicy(
                retention: configuration.retention,
                sessionRetention: configuration.sessionRetention,
                eraseAfter: configuration.eraseAfter,
                deliveryRetention: configuration.deliveryRetention,
                signInRetention: configuration.signInRetention
            ),
            metrics: MaintenanceMetrics(registry: metrics.registry)
        )
        // Before there is a client of HTTP, which an error would leave open.
        if configuration.effects == .on { try configuration.checkDeliveryAuthorities() }
        signIn =
            configuration.signsIn
            ? try SignInParts(
                configuration,
                keys: keys,
                pool: pool,
                metrics: metrics.registry,
                log: log,
                eventLoopGroup: loops.group
            ) : nil
        configuration.warnOfMistakes(in: log)
        guard configuration.effects == .on else {
            publisher = nil
            dispatcher = nil
            return
        }
        let source = Publisher(
            pool: pool,
            changes: changes,
            metrics: PublicationMetrics(registry: metrics.registry),
            log: log
        )
        publisher = source
        dispatcher = Dispatcher(
            pool: pool,
            // Idle between two checks, and given back to them immediately.
            listener: probes,
            publisher: source,
            connections: Dispatcher.Connections(
                configuration,
                proxy: configuration.deliveryProxy,
                resolver,
                on: loops
            ),
            concurrency: configuration.deliveryConcurrency,
            // The writer and the endpoints need the rest.
            grace: configuration.shutdownGrace / 3,
            metrics: DeliveryMetrics(registry: metrics.registry),
            log: log
        )
    }

    /// Checks that the database is reachable and has the schema of this binary; changes nothing. With a spool, an unreachable
    /// database is checked on the first connection instead.
    /// - Throws: `PostgresError`; `CommandFailure` for another schema.
    func prepare() async throws {
        try await unlessAway { try await Self.checkSchema(settings, state) }
    }

    /// Writes the apps in force to the database. Called only once the endpoints are open: a daemon that ends because another
    /// one has its port must not change the other one's apps. The writer starts afterwards, so with a spool, a database that
    /// does not do it within seconds counts as away.
    func announceApps() async throws {
        guard state.hasCheckedSchema.load(ordering: .relaxed) else { return }
        let audiences = intake.policy.audiences
        guard configuration.spoolDirectory != nil else { return try await pool.addClients(of: audiences) }
        try await unlessAway {
            var hasty = settings
            (hasty.connectTimeout, hasty.deadline, hasty.grace) = (.seconds(3), .seconds(3), .milliseconds(500))
            let pool = ConnectionPool(hasty, maximum: 1)
            try await withCleanup(pool.close) { try await pool.addClients(of: audiences) }
        }
    }

    /// Runs `work` now. With a spool and an unreachable database, the writer prepares the database on its first connection.
    private func unlessAway(_ work: () async throws -> Void) async throws {
        do {
            try await work()
        } catch let error as PostgresError where configuration.spoolDirectory != nil && error.isTemporary {
            log.warning(
                "PostgreSQL is unavailable; starting without it, notifications wait in the spool",
                ["error": "\(error)"]
            )
            prepareWithNextConnection()
        }
    }

    /// Prepares the database on the next connection, before any batch.
    func prepareWithNextConnection() {
        // Captures no more than needed: capturing the daemon, which holds the writer, would make a retain cycle.
        writer.prepareAgain { [settings, pool, intake, state] in
            try await Self.checkSchema(settings, state)
            try await pool.addClients(of: intake.policy.audiences)
        }
    }

    /// Checks the schema until it was right once.
    private static func checkSchema(_ settings: ConnectionSettings, _ state: DaemonState) async throws {
        guard !state.hasCheckedSchema.load(ordering: .relaxed) else { return }
        try await SchemaState.read(settings).check()
        state.hasCheckedSchema.store(true, ordering: .relaxed)
    }

    /// To be called once the services have ended. The event loops end with the process, because a connection that is still
    /// closing may need them.
    func close() async {
        await signIn?.close()
        await probes?.close()
        await pool.close()
    }

    /// All services, in the order of the start. They shut down in reverse order: the endpoint ends first, and the writer
    /// stores and answers what was accepted before it ends.
    ///
    /// - Parameters:
    ///   - reloading: the sources that SIGHUP reads; nil: SIGHUP is not handled.
    ///   - systemd: gets reports of the state; nil: siwad is no service of systemd.
    ///   - drainLimit: how long a shutdown waits for a load balancer to notice it; nil: a third of the grace period.
    ///   - onReady: called once, when the daemon is ready.
    func services(
        reloading: Reloading? = nil,
        systemd: Systemd? = nil,
        drainLimit: Duration? = nil,
        onReady: @escaping @Sendable (DaemonAddresses) async -> Void
    ) -> [NamedService] {
        let (intake, pool, state, writer, maintenance) = (intake, pool, state, writer, maintenance)
        let (keys, events, loops) = (intake.keys, intake.events, loops)
        let reloader = reloading.map { reloading in
            NamedService("reload") {
                await cancelWhenGracefulShutdown {
                    for await _ in reloading.signals {
                        systemd?.reloading()
                        await reload(from: reloading.sources)
                        systemd?.reloaded()
                    }
                }
            }
        }
        let publication = publisher.map { publisher in
            // Ends after the writer, so that its last changes are published.
            NamedService("publication", endedBy: { publisher.finish() }) {
                await state.endpointsOpen.whenOpen { await publisher.run() }
            }
        }
        let delivery = dispatcher.map { dispatcher in
            // Ends after the last changes are published.
            NamedService("delivery", endedBy: { dispatcher.finish() }) {
                await state.endpointsOpen.whenOpen { await dispatcher.run() }
            }
        }
        let application = applicationServer
        if application == nil { state.applicationOpen.open() }
        let exchange = signIn.map { signIn in
            NamedService("code exchange", endedBy: { signIn.service.finishExchanges() }) {
                await state.endpointsOpen.whenOpen { await signIn.service.runExchanges() }
            }
        }
        let watchdog = systemd?.watchdogInterval.map { interval in
            NamedService("watchdog") {
                await cancelWhenGracefulShutdown {
                    while !Task.isCancelled {
                        await loops.respond()
                        systemd?.signOfLife()
                        // A cancelled sleep ends the loop.
                        try? await Task.sleep(for: interval)
                    }
                }
            }
        }
        return [watchdog, reloader, delivery, publication].compactMap(\.self) + [
            // The last to end, after the writer.
            NamedService("events", endedBy: { events.finish() }) { await events.run(asking: pool) },
            NamedService("keys", endedBy: { keys.stop() }) {
                await state.endpointsOpen.whenOpen { await keys.run() }
            },
        ] + [exchange].compactMap(\.self) + [
            NamedService("maintenance") {
                await state.endpointsOpen.whenOpen { await cancelWhenGracefulShutdown { await maintenance.run() } }
            },
            NamedService("writer", endedBy: { writer.finish() }) {
                try await state.endpointsOpen.whenOpen {
                    do {
                        // A lock of another session may block this for longer than a shutdown may take.
                        try await cancelWhenGracefulShutdown { try await announceApps() }
                    } catch {
                        // Notifications that arrived during the start still get a response.
                        writer.finish()
                        await writer.run()
                        if (error as? PostgresError)?.code == .cancelled { return }
                        throw error
                    }
                    await writer.run()
                }
            },
            operationsServer,
        ] + [application].compactMap(\.self) + [
            NamedService("notifications", notificationServer.run),
            // The last to start is the first to end: readiness fails while the endpoint still accepts requests.
            NamedService("readiness") {
                await cancelWhenGracefulShutdown { await announceReadiness(to: systemd, onReady) }
                systemd?.stopping()
                await state.beginDraining(within: drainLimit ?? configuration.shutdownGrace / 3)
            },
        ]
    }

    private var operationsServer: NamedService {
        let state = state
        return NamedService("operations") {
            try await state.notificationsOpen.whenOpen {
                try await state.applicationOpen.whenOpen {
                    try await OperationsServer.run(
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
                }
            }
        }
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
            let lane = Receiver(service: intake, deliver: deliver)
            return { body, ticket in lane.receive(body, ticket: ticket) }
        }
    }
}

extension ConnectionPool {
    func addClients(of audiences: AudienceMap) async throws(PostgresError) {
        try await transaction { session throws(PostgresError) in try Clients.add(audiences, in: session) }
    }
}

extension PostgresError {
    /// True if the database may become reachable without a change of the configuration.
    fileprivate var isTemporary: Bool {
        switch sqlState?.classCode {
        case "28", "3D": false
        case "25": true
        default: isConnectionError || isRetryable
        }
    }
}

extension KeyRing.Source {
    /// Keys from Apple's endpoint, stored in the database under its URL.
    init(fetcher: KeySetFetcher, trust: SigningKeys.Trust, pool: ConnectionPool) {
        self.init(
            fetch: { try await fetcher.fetch() },
            persisted: {
                let kept = try await pool.withSession { session throws(PostgresError) in
                    try SigningKeys.latestSet(trust, in: session)
                }
                let keys = try kept.map { try JSONWebKey(JSONValue(parsing: Array($0.key.jwk.utf8))) }
                return KeySet(keys, fetchedAt: nil, confirmedAt: kept.first?.lastSeenAt)
            },
            persist: { keys, age in
                let kept = keys.map { SigningKeys.Kept(keyID: $0.keyID, jwk: $0.json) }
                try await pool.withSession { session throws(PostgresError) in
                    try SigningKeys.keep(kept, from: trust.url, age: age, in: session)
                }
            }
        )
    }
}
