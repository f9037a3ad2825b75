import AccountStore
import AppleTokens
import AppleSimulator
import Basics
import Ingest
import JOSE
import Postgres
import StoreTestSupport
import TestSupport
import Testing

/// What an operator does, for the fixture's letters.
extension IngestFixture {
    /// Replays open letters.
    @discardableResult
    func replay(
        _ filter: DeadLetterFilter = DeadLetterFilter(),
        apps: AudienceMap = DatabaseTemplate.siwaAudiences,
        leeway: Duration = .seconds(300),
        retention: Duration = .seconds(400 * 86_400),
        rate: Double? = nil,
        acceptsExpired: Bool = false,
        isRehearsal: Bool = false,
        batch: Int = 256,
        lockTimeout: Duration? = nil,
        now: @escaping @Sendable () -> WallTime = { WallTime.now() },
        onProgress: ([ReplayResult], ReplayReport) -> Void = { _, _ in }
    ) async throws -> ReplayReport? {
        let endpoint = endpoint
        let replay = DeadLetterReplay(
            policy: NotificationPolicy(audiences: apps, leeway: leeway),
            trust: Self.trust,
            retention: retention,
            fetchKeys: { try JSONWebKeySet(parsing: try await endpoint.fetch()).keys },
            now: now
        )
        var run = ReplayRun(filter, by: "kim", note: "ticket 7", rate: rate)
        run.acceptsExpired = acceptsExpired
        run.isRehearsal = isRehearsal
        run.batch = batch
        var settings = database.settings
        settings.lockTimeout = lockTimeout ?? settings.lockTimeout
        return try await replay.run(run, connecting: settings, onProgress: onProgress)
    }

    /// The only letter.
    func letter() async throws -> DeadLetterRecord {
        let found = try await connection.withSession { session throws(PostgresError) in
            let id = try DeadLetters.list(DeadLetterFilter(), status: nil, limit: 2, in: session).map(\.id)
            return id.count == 1 ? try DeadLetters.find(id: id[0], in: session) : nil
        }
        return try #require(found)
    }

    /// The advice about the only letter.
    func advice(
        apps: AudienceMap = DatabaseTemplate.siwaAudiences,
        now: WallTime = .now()
    ) async throws -> DeadLetterAdvice {
        let kept = try await connection.withSession { session throws(PostgresError) in
            try SigningKeys.all(Self.trust, in: session)
        }
        return DeadLetterAdvice(
            on: try await letter(),
            apps: apps,
            leeway: .seconds(300),
            keys: ReplayKeys(today: [], kept: kept, problem: nil),
            now: now
        )
    }

    /// Keeps a key as the daemon does after a fetch.
    func keepKeys(of apple: SimulatedApple) async throws {
        let kept = apple.keys.map { SigningKeys.Kept(keyID: $0.keyID, jwk: $0.json) }
        try await connection.withSession { session throws(PostgresError) in
            try SigningKeys.keep(kept, from: Self.trust.url, in: session)
        }
    }

    /// The body of a notification with times of its own.
    func body(
        _ type: String = "consent-revoked",
        issuedAt: WallTime,
        eventTime: WallTime? = nil,
        sub: String = "person",
        signedBy signer: SimulatedApple? = nil
    ) throws -> String {
        let event = SimulatedEvent(
            type: type,
            sub: sub,
            app: "com.example.one",
            eventTime: (eventTime ?? issuedAt - .seconds(10)).wholeMilliseconds,
            issuedAt: issuedAt.wholeSeconds
        )
        return SimulatedApple.body(token: try (signer ?? apple).token(for: event))
    }

    /// Signs the person in and opens a session, both at a time.
    func openSession(_ id: String = "session", at time: WallTime) async throws {
        try await connection.withSession { session throws(PostgresError) in
            let (client, person) = (ClientID("com.example.one"), Subject("person"))
            try Applications.recordSignIn(client: client, subject: person, signedInAt: time, in: session)
            try Applications.openSession(client: client, subject: person, session: id, createdAt: time, in: session)
        }
    }

    func isLive(_ id: String = "session") async throws -> Bool {
        try await connection.withSession { session throws(PostgresError) in
            try Applications.sessionIsLive(id, in: session)
        }
    }
}

extension ReplayReport {
    /// `3 unknown-audience → applied`, a line for each change.
    var lines: [String] {
        changes.map { change, count in
            "\(count) \(change.from.rawValue) → \(change.outcome?.rawValue ?? change.reason?.rawValue ?? "")"
        }.sorted()
    }
}
