import AppleTokens
import AppleSimulator
import Basics
import Postgres
import StoreTestSupport
import Synchronization
import TestSupport
import Testing

/// The surroundings of daemons under test: a migrated database, a simulated Apple with its key endpoint, and a connection.
struct DaemonFixture {
    /// Two teams, the first with two app groups.
    static let apps =
        "AAAAAAAAAA/com.example.one+com.example.web,AAAAAAAAAA/com.example.two,BBBBBBBBBB/com.example.other"

    /// Shared by all fixtures: creating a key takes longer than most tests.
    private static let apple = Result { try SimulatedApple.generate() }

    /// How to connect to the database, as superuser.
    let conninfo: String
    /// For queries, and for disturbing the daemon.
    let connection: PostgresConnection
    let apple: SimulatedApple
    let endpoint: KeyEndpoint
    private let started = StartedDaemons()

    /// The view lists the locks of all databases, in which other tests use the same keys, and tables have the same identifiers.
    static let ownLocks =
        "FROM pg_locks WHERE database = (SELECT oid FROM pg_database WHERE datname = current_database())"

    /// The daemons of a fixture; none outlives it.
    private final class StartedDaemons: Sendable {
        struct State {
            /// Daemons, and other programs that end with the fixture.
            var processes: [(process: DaemonProcess, isDaemon: Bool)] = []
            /// Nonces, and keys of rings.
            var secrets: Set<String> = []
            var signsIn = false
        }

        let state = Mutex(State())

        /// Returns what all of them logged, and what daemons printed.
        func end() async -> [String] {
            let processes = state.withLock { $0.processes }
            for (process, _) in processes where process.status == nil { await process.kill() }
            return processes.flatMap { process, isDaemon in process.log + (isDaemon ? process.output : []) }
        }
    }

    /// Runs a test with a new fixture.
    static func with<R>(_ body: (DaemonFixture) async throws -> R) async throws -> R {
        try await TestDatabase.with(.siwa) { database in try await with(database.conninfo, body) }
    }

    /// Runs a test with an existing migrated database.
    static func with<R>(_ conninfo: String, _ body: (DaemonFixture) async throws -> R) async throws -> R {
        let apple = try apple.get()
        return try await KeyEndpoint.with(apple.keySetJSON) { endpoint in
            let connection = try await connect(conninfo)
            let fixture = DaemonFixture(conninfo: conninfo, connection: connection, apple: apple, endpoint: endpoint)
            do {
                let result = try await body(fixture)
                await fixture.close()
                return result
            } catch {
                await fixture.close()
                throw error
            }
        }
    }

    /// Runs a test with a new fixture and a daemon that is ready.
    static func withDaemon<R>(
        _ settings: [String: String] = [:],
        _ body: (DaemonFixture, DaemonProcess, DaemonProcess.Addresses) async throws -> R
    ) async throws -> R {
        try await with { fixture in
            try await fixture.withDaemon(settings) { daemon, addresses in try await body(fixture, daemon, addresses) }
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

    /// Starts a daemon. It ends with the fixture at the latest.
    ///
    /// - Parameter command: a command that executes the rest of the command line.
    func start(
        _ settings: [String: String] = [:],
        arguments: [String] = ["serve"],
        openFiles: Int? = nil,
        under command: [String] = []
    ) -> DaemonProcess {
        // An empty value removes the variable.
        let environment = environment(settings).filter { !$0.value.isEmpty }
        let daemon = DaemonProcess(arguments, environment: environment, openFiles: openFiles, under: command)
        started.state.withLock { state in
            state.processes.append((process: daemon, isDaemon: arguments.first == "serve"))
            state.secrets.formUnion(TokenSearch.spellings(ofRing: environment["SIWAD_SEALING_KEYS"] ?? ""))
        }
        return daemon
    }

    /// Adds nonces or keys to the search at the end of the test, which then fails if the database can't be searched.
    func keepSecret(_ secrets: [String]) {
        started.state.withLock { state in
            state.secrets.formUnion(secrets)
            state.signsIn = true
        }
    }

    /// Ends the daemons. Whatever the test was about: they may not have left a token, a nonce or a key where others could read
    /// it.
    private func close() async {
        let log = await started.end()
        let (secrets, signsIn) = started.state.withLock { ($0.secrets, $0.signsIn) }
        #expect(TokenSearch.tokens(in: log).isEmpty, "a log contains a token")
        #expect(TokenSearch.occurrences(of: secrets, in: log) == [], "a log contains a nonce or a key")
        do {
            let found = try await TokenSearch.tokensInDatabase(texts, secrets: secrets)
            #expect(found == [], "the database contains a token, a nonce or a key")
        } catch {
            // A test without sign-ins may have broken its own database.
            if signsIn { Issue.record("the database can't be searched for tokens: \(error)") }
        }
        await connection.close()
    }

    /// The environment of a daemon.
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

    /// An event that Apple would report now.
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

    /// The body of Apple's request for an event.
    func body(_ event: SimulatedEvent, signedBy signer: SimulatedApple? = nil) throws -> String {
        SimulatedApple.body(token: try (signer ?? apple).token(for: event))
    }

    // MARK: - The database

    /// The values of one text column.
    func texts(_ sql: String) async throws -> [String] {
        try await connection.withSession { session throws(PostgresError) in
            let rows = try session.execute(Statement(once: sql))
            var texts: [String] = []
            for row in 0..<rows.count { texts.append(try rows.optionalString(row, 0) ?? "NULL") }
            return texts
        }
    }

    func run(_ script: String) async throws {
        try await connection.withSession { session throws(PostgresError) in try session.execute(script: script) }
    }

    /// Whether the tables that notifications reach are empty.
    func isUntouched() async throws -> Bool {
        try await texts(
            "SELECT jti FROM siwa.notifications UNION ALL SELECT reason FROM siwa.dead_letters"
                + " UNION ALL SELECT sub FROM siwa.accounts"
        ).isEmpty
    }

    /// Stalls every commit that adds a person, until ``letCommit()``.
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

    /// Makes the database unreachable, and ends all connections except the fixture's.
    func closeDatabase() async throws {
        try await alterDatabase("ALLOW_CONNECTIONS false")
        try await endOtherConnections()
    }

    /// Ends ``closeDatabase()``.
    func openDatabase() async throws {
        try await alterDatabase("ALLOW_CONNECTIONS true")
    }

    /// Ends all connections except the fixture's.
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

    static func connect(_ conninfo: String) async throws -> PostgresConnection {
        try await PostgresConnection.connect(ConnectionSettings(conninfo: conninfo, applicationName: "tests"))
    }
}
