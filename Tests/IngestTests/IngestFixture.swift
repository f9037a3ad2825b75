import AccountStore
import AppleTokens
import AppleSimulator
import Basics
@testable import Ingest
import JOSE
import Postgres
import Spool
import StoreTestSupport
import Synchronization
import Telemetry
import TestSupport

/// What Apple's key endpoint answers at present, and how often it was asked.
final class KeyEndpoint: Sendable {
    struct Down: Error, CustomStringConvertible {
        var description: String { "the key endpoint is down" }
    }

    private struct State {
        var keySet: String?
        var fetches = 0
        var holds = false
        var held = 0
    }

    private let state: Mutex<State>

    init(_ keySet: String?) {
        state = Mutex(State(keySet: keySet))
    }

    /// Whether a fetch waits for a response that is held back.
    var isHeld: Bool { state.withLock { $0.held > 0 } }

    /// Holds all answers back until ``release()``.
    func hold() {
        state.withLock { $0.holds = true }
    }

    func release() {
        state.withLock { $0.holds = false }
    }

    var fetches: Int { state.withLock { $0.fetches } }

    func serve(_ keySet: String?) {
        state.withLock { $0.keySet = keySet }
    }

    func fetch() async throws -> [UInt8] {
        state.withLock { state in
            state.fetches += 1
            state.held += 1
        }
        defer { state.withLock { $0.held -= 1 } }
        while state.withLock({ $0.holds }) { try await Task.sleep(for: .milliseconds(2)) }
        return try state.withLock { state in
            guard let keySet = state.keySet else { throw Down() }
            return Array(keySet.utf8)
        }
    }
}

/// The lines that a service logged.
final class CollectedLog: Sendable {
    private let state = Mutex<[String]>([])

    var lines: [String] { state.withLock { $0 } }

    func append(_ line: [UInt8]) {
        state.withLock { $0.append(String(decoding: line, as: UTF8.self)) }
    }

    /// How many lines hold the text.
    func count(_ text: String) -> Int { lines.count { $0.contains(text) } }
}

/// A service on a database of its own, with its writer and its keys running.
struct IngestFixture {
    /// Under which kept keys count.
    static let trust = SigningKeys.Trust(url: "https://keys.example/auth/keys", maximumAge: .seconds(30 * 86_400))

    let database: TestDatabase
    /// For queries of the test.
    let connection: PostgresConnection
    let service: IngestService
    let client: TestClient
    let apple: SimulatedApple
    let endpoint: KeyEndpoint
    let metrics: SiwadMetrics
    let log: CollectedLog

    /// Runs a test with a service that stores.
    static func with<R>(
        limits: IngestService.Limits = IngestService.Limits(),
        floor: Duration = .seconds(60),
        burst: Int = 1,
        leeway: Duration = .seconds(300),
        settles: Bool = false,
        conninfo: String? = nil,
        spool: Spool? = nil,
        _ body: (IngestFixture) async throws -> R
    ) async throws -> R {
        try await TestDatabase.with(.siwa) { database in
            let settings = try conninfo.map { try ConnectionSettings(conninfo: $0, applicationName: "tests") }
            return try await with(
                database,
                settings ?? database.settings,
                limits: limits,
                floor: floor,
                burst: burst,
                leeway: leeway,
                settles: settles,
                spool: spool,
                body
            )
        }
    }

    /// Runs a test with a service that stores in a database that is there already.
    ///
    /// - Parameter settles: whether letters that were kept for want of a key are settled.
    static func with<R>(
        _ database: TestDatabase,
        _ settings: ConnectionSettings,
        limits: IngestService.Limits = IngestService.Limits(),
        floor: Duration = .seconds(60),
        burst: Int = 1,
        leeway: Duration = .seconds(300),
        settles: Bool = false,
        spool: Spool? = nil,
        _ body: (IngestFixture) async throws -> R
    ) async throws -> R {
        try await IngestFixture(database, limits, floor, burst, leeway, spool).run(settings, settles: settles, body)
    }

    private init(
        _ database: TestDatabase,
        _ limits: IngestService.Limits,
        _ floor: Duration,
        _ burst: Int,
        _ leeway: Duration,
        _ spool: Spool?
    ) async throws {
        self.database = database
        connection = try await PostgresConnection.connect(database.settings)
        apple = try SimulatedApple.generate()
        endpoint = KeyEndpoint(apple.keySetJSON)
        let endpoint = endpoint
        metrics = SiwadMetrics(version: "test", appIDs: DatabaseTemplate.siwaAudiences.groups.map(\.app.rawValue))
        let collected = CollectedLog()
        self.log = collected
        let log = Log(label: "test", level: .info, format: .text) { collected.append($0) }
        let keys = KeyRing(
            refresh: .seconds(3600),
            floor: floor,
            burst: burst,
            source: KeyRing.Source(
                fetch: { try await endpoint.fetch() },
                persisted: { .none },
                persist: { _, _ in }
            ),
            metrics: metrics,
            log: log
        )
        service = IngestService(
            policy: NotificationPolicy(audiences: DatabaseTemplate.siwaAudiences, leeway: leeway),
            keys: keys,
            spool: spool,
            limits: limits,
            metrics: metrics,
            log: log
        )
        client = TestClient(service)
    }

    private func run<R>(
        _ settings: ConnectionSettings,
        settles: Bool,
        _ body: (IngestFixture) async throws -> R
    ) async throws -> R {
        let writer = NotificationWriter(service: service, settings: settings, trust: Self.trust)
        let keys = service.keys
        // One, as the daemon has by default with a spool.
        let pool = ConnectionPool(settings, maximum: 1)
        let settlement = LetterSettlement(
            service: service,
            pool: pool,
            trust: Self.trust,
            interval: .milliseconds(50)
        )
        let maintaining = Task {
            var settlement = settlement
            if settles { await settlement.run() }
        }
        defer { maintaining.cancel() }
        return try await withThrowingTaskGroup(of: Void.self) { group in
            group.addTask { await keys.run() }
            group.addTask { await writer.run() }
            while keys.keys.isEmpty { await Task.yield() }
            defer {
                keys.stop()
                writer.finish()
            }
            let result: R
            do {
                result = try await body(self)
            } catch {
                maintaining.cancel()
                await maintaining.value
                await pool.close()
                await connection.close()
                throw error
            }
            maintaining.cancel()
            await maintaining.value
            await pool.close()
            keys.stop()
            writer.finish()
            try await group.waitForAll()
            await connection.close()
            return result
        }
    }

    /// Waits until the writer has its connection.
    func untilStoring() async {
        await until { $0.service.isStoring }
    }

    /// Waits until something holds; the time limit of the suite ends it.
    func until(_ holds: (IngestFixture) -> Bool) async {
        while !holds(self), !Task.isCancelled {
            // Short, so that the pool is left to those who make it hold; cancellation ends the loop.
            try? await Task.sleep(for: .milliseconds(2))
        }
    }

    /// The body of a notification that Apple would send now.
    func body(
        _ type: String = "email-disabled",
        sub: String = "person",
        app: String = "com.example.one",
        id: String = SimulatedEvent.randomID(),
        signedBy signer: SimulatedApple? = nil
    ) throws -> String {
        let now = WallTime.now().wholeSeconds
        let event = SimulatedEvent(
            type: type,
            sub: sub,
            app: app,
            eventTime: (now - 10) * 1_000,
            issuedAt: now,
            id: id
        )
        return SimulatedApple.body(token: try (signer ?? apple).token(for: event))
    }

    /// The token in a body of the simulator's.
    static func token(in body: String) -> String {
        String(body.dropFirst(#"{"payload":""#.count).dropLast(2))
    }

    /// The body with a token that says the same, but names another key.
    static func body(_ body: String, naming kid: String) -> String {
        let header = Base64URL.encode(Array(#"{"kid":"\#(kid)","alg":"RS256"}"#.utf8))
        return SimulatedApple.body(token: header + token(in: body).drop { $0 != "." })
    }

    /// Rows of one text column.
    func texts(_ sql: String) async throws -> [String] {
        try await connection.withSession { session throws(PostgresError) in try session.texts(sql) }
    }

    func run(_ script: String) async throws {
        try await connection.withSession { session throws(PostgresError) in try session.execute(script: script) }
    }

    /// Makes every commit of new accounts wait until ``letCommit()``.
    func stallCommits() async throws {
        try await run(CommitStall.begin)
    }

    func letCommit() async throws {
        try await run(CommitStall.end)
    }

    /// Waits until a commit is stalled.
    func untilStalled() async throws {
        while try await texts(CommitStall.waiting).isEmpty {
            await Task.yield()
        }
    }
}
