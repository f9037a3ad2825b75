import AppleTokens
import AppleSimulator
import Postgres
import StoreTestSupport
import Synchronization
import TestSupport

/// A migrated database, an Apple with its key endpoint, and a person who looks at them: what daemons under test run in.
struct Scene {
    /// Two teams, the first with two app groups.
    static let apps =
        "AAAAAAAAAA/com.example.one+com.example.web,AAAAAAAAAA/com.example.two,BBBBBBBBBB/com.example.other"

    /// Of all scenes: making a key takes longer than most tests.
    private static let apple = Result { try SimulatedApple.generate() }

    /// How to connect to the database, as superuser.
    let conninfo: String
    /// For looking, and for being in the way.
    let connection: PostgresConnection
    let apple: SimulatedApple
    let endpoint: KeyEndpoint
    private let roster = Roster()

    /// The daemons that were started in a scene; none outlives it.
    private final class Roster: Sendable {
        let daemons = Mutex<[DaemonProcess]>([])

        func end() async {
            for daemon in daemons.withLock({ $0 }) where daemon.status == nil { await daemon.kill() }
        }
    }

    /// Runs a test with a scene of its own.
    static func with<R>(_ body: (Scene) async throws -> R) async throws -> R {
        try await TestDatabase.with(.siwa) { database in try await with(database.conninfo, body) }
    }

    /// Runs a test in a migrated database that is there already.
    static func with<R>(_ conninfo: String, _ body: (Scene) async throws -> R) async throws -> R {
        let apple = try apple.get()
        return try await KeyEndpoint.with(apple.keySetJSON) { endpoint in
            let connection = try await connect(conninfo)
            let scene = Scene(conninfo: conninfo, connection: connection, apple: apple, endpoint: endpoint)
            do {
                let result = try await body(scene)
                await scene.close()
                return result
            } catch {
                await scene.close()
                throw error
            }
        }
    }

    /// Runs a test with a scene of its own in which a daemon is ready.
    static func withDaemon<R>(
        _ settings: [String: String] = [:],
        _ body: (Scene, DaemonProcess, DaemonProcess.Addresses) async throws -> R
    ) async throws -> R {
        try await with { scene in
            try await scene.withDaemon(settings) { daemon, addresses in try await body(scene, daemon, addresses) }
        }
    }

    /// Runs a test with a daemon that is ready.
    func withDaemon<R>(
        _ settings: [String: String] = [:],
        _ body: (DaemonProcess, DaemonProcess.Addresses) async throws -> R
    ) async throws -> R {
        let daemon = start(settings)
        do {
            let result = try await body(daemon, try await daemon.ready())
            await daemon.kill()
            return result
        } catch {
            await daemon.kill()
            throw error
        }
    }

    /// Starts a daemon; it ends with the scene at the latest.
    ///
    /// - Parameter command: what its command line begins with.
    func start(
        _ settings: [String: String] = [:],
        arguments: [String] = ["serve"],
        openFiles: Int? = nil,
        under command: [String] = []
    ) -> DaemonProcess {
        // An empty text stands for a variable that isn't there.
        let environment = environment(settings).filter { !$0.value.isEmpty }
        let daemon = DaemonProcess(arguments, environment: environment, openFiles: openFiles, under: command)
        roster.daemons.withLock { $0.append(daemon) }
        return daemon
    }

    private func close() async {
        await roster.end()
        await connection.close()
    }

    /// The environment of a daemon in this scene.
    func environment(_ settings: [String: String] = [:]) -> [String: String] {
        var environment = [
            "SIWAD_DATABASE_URL": conninfo,
            "SIWAD_APPS": Self.apps,
            "SIWAD_KEYS_URL": endpoint.url,
            "SIWAD_LISTEN": "127.0.0.1:0",
            "SIWAD_OPERATIONS_LISTEN": "127.0.0.1:0",
            "SIWAD_LOG_FORMAT": "json",
        ]
        environment.merge(settings) { _, given in given }
        return environment
    }

    // MARK: - Notifications

    /// An event that Apple would tell of now.
    func event(
        _ type: String = "email-disabled",
        sub: String = "person",
        app: String = "com.example.one",
        id: String = SimulatedEvent.randomID(),
        secondsAgo: Int64 = 10
    ) -> SimulatedEvent {
        let now = WallTime.now().wholeSeconds
        return SimulatedEvent(
            type: type,
            sub: sub,
            app: app,
            eventTime: (now - secondsAgo) * 1_000,
            issuedAt: now,
            id: id
        )
    }

    /// The body of the request in which Apple would tell of an event.
    func body(_ event: SimulatedEvent, signedBy signer: SimulatedApple? = nil) throws -> String {
        SimulatedApple.body(token: try (signer ?? apple).token(for: event))
    }

    // MARK: - The database

    /// Rows of one text column.
    func texts(_ sql: String) async throws -> [String] {
        try await connection.withSession { session throws(PostgresError) in
            let rows = try session.execute(Statement(once: sql))
            var texts: [String] = []
            for row in 0..<rows.count { texts.append(try rows.optionalString(row, 0) ?? "NULL") }
            return texts
        }
    }

    /// Runs statements.
    func run(_ script: String) async throws {
        try await connection.withSession { session throws(PostgresError) in try session.execute(script: script) }
    }

    /// Whether a test left no trace in the tables that notifications reach.
    func isUntouched() async throws -> Bool {
        try await texts(
            "SELECT jti FROM siwa.notifications UNION ALL SELECT reason FROM siwa.dead_letters"
                + " UNION ALL SELECT sub FROM siwa.accounts"
        ).isEmpty
    }

    /// Makes every commit that brings a person not known before wait until ``letCommit()``.
    func stallCommits() async throws {
        try await run(CommitStall.begin)
    }

    /// Ends ``stallCommits()``.
    func letCommit() async throws {
        try await run(CommitStall.end)
    }

    /// Waits until a commit is stalled.
    func untilStalled() async throws {
        try await eventually("a stalled commit") { try await !texts(CommitStall.waiting).isEmpty }
    }

    /// Makes the database unreachable, also for those who are connected; the connection for looking stays.
    func closeDatabase() async throws {
        try await alterDatabase("ALLOW_CONNECTIONS false")
        try await endOtherConnections()
    }

    /// Ends ``closeDatabase()``.
    func openDatabase() async throws {
        try await alterDatabase("ALLOW_CONNECTIONS true")
    }

    /// Ends all connections but the one for looking.
    func endOtherConnections() async throws {
        try await run(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                + " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
    }

    /// Changes an attribute or a setting of the database.
    func alterDatabase(_ change: String) async throws {
        let name = try await texts("SELECT quote_ident(current_database())")[0]
        let connection = try await Self.connect(conninfo + " dbname=postgres")
        try await connection.withSession { session throws(PostgresError) in
            try session.execute(script: "ALTER DATABASE \(name) \(change)")
        }
        await connection.close()
    }

    /// A connection of the tests'.
    static func connect(_ conninfo: String) async throws -> PostgresConnection {
        try await PostgresConnection.connect(ConnectionSettings(conninfo: conninfo, applicationName: "tests"))
    }
}
