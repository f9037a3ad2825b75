import AccountStore
import AppleSimulator
import AppleTokens
import Basics
import Ingest
import JOSE
import Postgres
import SignIn
import SignInFlow
import StoreTestSupport
import Synchronization
import Telemetry
import TestSupport
import Testing

@testable import WebClient

/// Apple in memory: what a device gets, and the token endpoint.
final class LocalApple: Sendable {
    /// What a device hands to its app.
    struct Device: Sendable {
        var token: String
        var code: String
        var user: JSONValue
        var subject: String
    }

    private struct State {
        var server: TokenServer
        var forms: [FormFields] = []
        var fetches = 0
        var isKeySetBroken = false
        var keySetGate: WakeupEvent?
        var refusedKeys: Set<String> = []
        var clock = Duration.zero
        var work: (@Sendable () async throws -> Void)?
    }

    private let state: Mutex<State>

    init(_ apple: SimulatedApple) {
        state = Mutex(State(server: TokenServer(apple: apple)))
    }

    /// What was sent to the token endpoint so far.
    var forms: [FormFields] { state.withLock { $0.forms } }

    /// Requests to the token endpoint so far.
    var requests: Int { forms.count }

    /// How often the key set was fetched.
    var fetches: Int { state.withLock { $0.fetches } }

    /// What signs identity tokens.
    var signer: SimulatedApple {
        guard let signer = state.withLock({ $0.server.signers.last }) else {
            preconditionFailure("the simulator has a key")
        }
        return signer
    }

    func keySet() async -> String {
        let gate = state.withLock { state in
            defer { state.keySetGate = nil }
            state.fetches += 1
            return state.keySetGate
        }
        await gate?.wait(atMost: .seconds(20))
        return state.withLock { $0.isKeySetBroken ? "" : $0.server.keySetJSON }
    }

    /// The next fetch of the key set gets its answer when the gate is signalled.
    func holdKeySet(until gate: WakeupEvent) {
        state.withLock { $0.keySetGate = gate }
    }

    /// From now on, the key set can't be fetched.
    func breakKeySet() {
        state.withLock { $0.isKeySetBroken = true }
    }

    /// From now on, the key set can be fetched again.
    func repairKeySet() {
        state.withLock { $0.isKeySetBroken = false }
    }

    /// Performs `work` during the next request to the token endpoint: the sign-in is reserved then, and not settled.
    func whileAsked(_ work: @escaping @Sendable () async throws -> Void) {
        state.withLock { $0.work = work }
    }

    /// Answers the next code with an access token, a refresh token, and this identity token.
    func answer(access: String, identity: String) throws {
        let body = SimulatedResponse.tokens(access: access, refresh: "r-of-the-test", identity: identity).body
        try behave("{\"body\":\(JSONValue.quoted(body))}")
    }

    /// Refuses client secrets that are signed with these keys.
    func refuse(keys: Set<String>) {
        state.withLock { $0.refusedKeys = keys }
    }

    /// Moves the clock in the header `Date`.
    func setClock(ahead: Duration) {
        state.withLock { $0.clock = ahead }
    }

    func behave(_ behaviour: String) throws {
        _ = try state.withLock { try $0.server.perform(.behave, Array(behaviour.utf8), at: Self.now) }
    }

    func signIn(
        person: String = "ada",
        client: String = "com.example.one",
        nonce: String? = "nonce-of-ada",
        members: String = ""
    ) throws -> Device {
        let nonce = nonce.map { ",\"nonce\":\"\($0)\"" } ?? ""
        let body = "{\"person\":\"\(person)\",\"client_id\":\"\(client)\"\(nonce)\(members)}"
        let answer = try state.withLock { try $0.server.perform(.signIn, Array(body.utf8), at: Self.now) }.response
        return Device(
            token: answer["identityToken"]?.string ?? "",
            code: answer["authorizationCode"]?.string ?? "",
            user: answer["user"] ?? .null,
            subject: answer["sub"]?.string ?? ""
        )
    }

    func send(_ grant: TokenGrant, _ budget: Duration) async -> TokenEndpointClient.Dated {
        let work = state.withLock { state in
            defer { state.work = nil }
            return state.work
        }
        do {
            try await work?()
        } catch {
            Issue.record(error)
        }
        return answer(to: grant, budget)
    }

    private func answer(to grant: TokenGrant, _ budget: Duration) -> TokenEndpointClient.Dated {
        state.withLock { state in
            let date = (WallTime.now() + state.clock).httpDate
            let form = FormFields(parsing: Array(grant.form.utf8))
            state.forms.append(form ?? FormFields([:]))
            if let secret = form?["client_secret"], let key = try? JWSHeader(ofToken: Array(secret.utf8)).keyID,
                state.refusedKeys.contains(key)
            {
                let body = Array("{\"error\":\"invalid_client\"}".utf8)
                return .init(answer: TokenAnswer(status: 400, retryAfter: nil, body: body), date: date)
            }
            guard let response = try? state.server.respond(to: .token, form, at: Self.now) else {
                preconditionFailure("the simulator has a key")
            }
            let answer: TokenAnswer =
                if response.isCut {
                    .unavailable(.init(.broken))
                } else if .milliseconds(response.delay) > budget {
                    .unavailable(.init(.timedOut))
                } else if response.body.utf8.count > TokenEndpointClient.largestAnswer {
                    .unavailable(.init(.notUnderstood))
                } else {
                    TokenAnswer(
                        status: response.status,
                        retryAfter: response.retryAfter.map(String.init),
                        body: Self.bytes(of: response)
                    )
                }
            return .init(answer: answer, date: date)
        }
    }

    /// The body in the charset of its type.
    private static func bytes(of response: SimulatedResponse) -> [UInt8] {
        guard response.contentType.hasSuffix("UTF-16") else { return Array(response.body.utf8) }
        return response.body.utf16.flatMap { [UInt8($0 >> 8), UInt8($0 & 0xFF)] }
    }

    private static var now: Int64 { WallTime.now().wholeMilliseconds }
}

/// The lines that a service logged.
final class CollectedLog: Sendable {
    private let state = Mutex<[String]>([])

    var text: String { state.withLock { $0.joined() } }

    /// The number of lines that have all these words.
    func count(_ words: String...) -> Int {
        text.split(separator: "\n").count(where: { line in words.allSatisfy { line.contains($0) } })
    }

    func append(_ line: [UInt8]) {
        state.withLock { $0.append(String(decoding: line, as: UTF8.self)) }
    }
}

/// A service that signs people in with a database and an Apple of its own.
struct FlowFixture: Sendable {
    /// How sign-ins are checked and kept.
    struct Rules: Sendable {
        var exchange = CodeExchange.preferred
        var nonce = NoncePolicy.required
        var keepsNames = true
        var appleKeys = ["KEYONE0001", "KEYTWO0002"]
        var hasSealingKeys = true
    }

    /// Shared by all fixtures: creating a key takes longer than most tests.
    private static let apple = Result { try SimulatedApple.generate() }

    let database: TestDatabase
    let pool: ConnectionPool
    let apple: LocalApple
    let keys: KeyRing
    let service: SignInService
    let sealingKeys: SealingKeys
    let metrics: SiwadMetrics
    let log: CollectedLog

    static func with<R>(_ rules: Rules = Rules(), _ body: (FlowFixture) async throws -> R) async throws -> R {
        try await TestDatabase.with(.siwa) { database in
            let apple = LocalApple(try Self.apple.get())
            let metrics = SiwadMetrics(version: "0", appIDs: [])
            let lines = CollectedLog()
            let log = Log(label: "tests", level: .info, format: .json, write: lines.append)
            let pool = database.pool()
            let ring = KeyRing(
                refresh: .seconds(3_600),
                floor: .seconds(60),
                source: .init(
                    fetch: { await Array(apple.keySet().utf8) },
                    persisted: { KeySet([], fetchedAt: nil, confirmedAt: nil) },
                    persist: { _, _ in }
                ),
                metrics: metrics,
                log: log
            )
            let sealingKeys = try SealingKeys(parsing: SealingKeys.newLine(name: "k1"))
            let counters = SignInMetrics(registry: metrics.registry)
            let service = SignInService(
                policy: try policy(rules, sealingKeys),
                keys: ring,
                exchanger: CodeExchanger(send: { await apple.send($0, $1) }, metrics: counters, log: log),
                pool: pool,
                metrics: counters,
                log: log
            )
            let fixture = FlowFixture(
                database: database,
                pool: pool,
                apple: apple,
                keys: ring,
                service: service,
                sealingKeys: sealingKeys,
                metrics: metrics,
                log: lines
            )
            async let running: Void = ring.run()
            let result: Result<R, any Error>
            do {
                result = .success(try await body(fixture))
            } catch {
                result = .failure(error)
            }
            ring.stop()
            await running
            #expect(TokenSearch.tokens(in: [lines.text]).isEmpty, "the log contains a token")
            await pool.close()
            // With another pool, because a test may close that of its service.
            let search = database.pool()
            do {
                let tokens = try await TokenSearch.tokensInDatabase { sql in try await texts(sql, search) }
                #expect(tokens == [], "the database contains a token")
            } catch {
                Issue.record("the database can't be searched for tokens: \(error)")
            }
            await search.close()
            return try result.get()
        }
    }

    private static func policy(_ rules: Rules, _ sealingKeys: SealingKeys) throws -> SignInPolicy {
        let audiences = DatabaseTemplate.siwaAudiences
        let keys = try rules.appleKeys.map { ClientSecrets.Key(id: $0, key: try .generate()) }
        let groups = audiences.groups.map { ($0.app, keys) }
        return try SignInPolicy(
            audiences: audiences,
            identity: IdentityPolicy(nonce: rules.nonce),
            exchange: rules.exchange,
            keepsNames: rules.keepsNames,
            sealingKeys: rules.hasSealingKeys ? sealingKeys : nil,
            secrets: keys.isEmpty
                ? nil : ClientSecrets(keys: Dictionary(uniqueKeysWithValues: groups), lifetime: .seconds(300))
        )
    }

    /// - Parameter keys: instead of the fixture's.
    func replace(_ rules: Rules, sealingKeys keys: SealingKeys? = nil) throws {
        service.replace(policy: try Self.policy(rules, keys ?? sealingKeys))
    }

    // MARK: - Requests

    /// The request of a backend that has what a device got.
    func request(
        _ device: LocalApple.Device,
        client: String = "com.example.one",
        nonce: String? = "nonce-of-ada",
        session: String? = nil,
        key: String? = nil,
        token: Bool = true,
        code: Bool = true,
        members: String = ""
    ) throws -> SignInRequest {
        var parts = ["\"client_id\":\"\(client)\""]
        if token { parts.append("\"identity_token\":\"\(device.token)\"") }
        if code { parts.append("\"authorization_code\":\"\(device.code)\"") }
        if let nonce { parts.append("\"nonce\":\"\(nonce)\"") }
        if let session { parts.append("\"session\":{\"id\":\"\(session)\"}") }
        if device.user != .null { parts.append("\"user\":\(device.user.compactText)") }
        let body = "{\(parts.joined(separator: ","))\(members)}"
        return try SignInRequest(parsing: Array(body.utf8), idempotencyKey: key)
    }

    func signIn(_ request: SignInRequest, by caller: Caller? = nil) async throws -> SignInAnswer {
        try await service.signIn(request, by: caller)
    }

    /// The reason for which a request is refused; nil if it is not.
    func refusal(_ request: SignInRequest, by caller: Caller? = nil) async -> Problem.Reason? {
        do throws(Problem) {
            _ = try await service.signIn(request, by: caller)
            return nil
        } catch {
            return error.reason
        }
    }

    // MARK: - The database

    /// The values of one column.
    func texts(_ sql: String) async throws -> [String] { try await Self.texts(sql, pool) }

    private static func texts(_ sql: String, _ pool: ConnectionPool) async throws -> [String] {
        try await pool.withSession { session throws(PostgresError) in
            let rows = try session.execute(Statement(once: sql))
            var texts: [String] = []
            for row in 0..<rows.count { texts.append(try rows.optionalString(row, 0) ?? "NULL") }
            return texts
        }
    }

    func run(_ script: String) async throws {
        try await pool.withSession { session throws(PostgresError) in try session.execute(script: script) }
    }

    /// Records a notification about a person, as the writer does.
    @discardableResult
    func record(_ type: String, of subject: String, at time: WallTime) async throws -> NotificationOutcome? {
        let connection = try await PostgresConnection.connect(database.settings)
        let outcomes = try await connection.withSession { session throws(PostgresError) in
            try session.execute(script: Notifications.writerSettings)
            try Notifications.ensurePartitions(from: time, through: time + .seconds(60), in: session)
            let notification = ReceivedNotification.sample(type, sub: subject, at: time, id: type)
            return try Notifications.record([notification], source: .endpoint, in: session).map(\.outcome)
        }
        await connection.close()
        return outcomes.first
    }
}

/// Waits until a condition holds.
func eventually(
    _ what: String,
    within limit: Duration = .seconds(20),
    _ condition: () async throws -> Bool
) async throws {
    let end = ContinuousClock.now + limit
    while try await !condition() {
        guard .now < end else { throw TooLate(what: what) }
        try await Task.sleep(for: .milliseconds(10))
    }
}

struct TooLate: Error {
    let what: String
}
