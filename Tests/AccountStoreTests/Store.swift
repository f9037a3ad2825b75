import AccountStore
import AppleTokens
import Basics
import Postgres
import StoreTestSupport
import TestSupport
import Testing

/// A migrated database for one test, with one connection that has the writer's settings.
struct Store {
    static let now = WallTime(seconds: 1_790_000_000)

    let database: TestDatabase
    let connection: PostgresConnection

    static func with<R>(_ body: (Store) async throws -> R) async throws -> R {
        try await TestDatabase.with(.siwa) { database in
            let store = Store(database: database, connection: try await writer(database))
            let result = try await body(store)
            await store.connection.close()
            return result
        }
    }

    static func writer(_ database: TestDatabase) async throws -> PostgresConnection {
        let connection = try await PostgresConnection.connect(database.settings)
        try await connection.withSession { session throws(PostgresError) in
            try session.execute(script: Notifications.writerSettings)
            try Notifications.ensurePartitions(from: now - .seconds(86_400), through: now, in: session)
        }
        return connection
    }

    /// Replaces texts in a function of the schema, wherever they occur in it.
    func change(_ function: String, _ changes: [(old: String, new: String)]) async throws {
        var text = try await texts("SELECT pg_get_functiondef('siwa.\(function)'::regproc)")[0]
        for (old, new) in changes {
            try #require(text.contains(old), "\(function) has changed: \(old)")
            text = text.replacing(old, with: new)
        }
        try await run(text)
    }

    @discardableResult
    func record(_ batch: ReceivedNotification...) async throws -> [NotificationOutcome] {
        try await connection.withSession { session throws(PostgresError) in
            try Notifications.record(batch, source: .endpoint, in: session).map(\.outcome)
        }
    }

    func signIn(
        _ sub: String,
        at time: WallTime,
        client: String = "com.example.one",
        email: String? = nil,
        emailIsPrivate: Bool? = nil
    ) async throws {
        try await connection.withSession { session throws(PostgresError) in
            _ = try Applications.recordSignIn(
                client: ClientID(client),
                subject: Subject(sub),
                email: email,
                emailIsPrivate: emailIsPrivate,
                signedInAt: time,
                in: session
            )
        }
    }

    @discardableResult
    func openSession(
        _ id: String,
        of sub: String,
        at time: WallTime,
        client: String = "com.example.one"
    ) async throws -> Bool {
        try await connection.withSession { session throws(PostgresError) in
            try Applications.openSession(
                client: ClientID(client),
                subject: Subject(sub),
                session: id,
                createdAt: time,
                in: session
            )
        }
    }

    func session(_ id: String) async throws -> AccountSession? {
        try await connection.withSession { session throws(PostgresError) in
            try Sessions.list(SessionFilter(id: id), in: session).first
        }
    }

    func state(_ sub: String, team: String = "AAAAAAAAAA", app: String = "com.example.one") async throws
        -> AccountState?
    {
        try await connection.withSession { session throws(PostgresError) in
            try Accounts.states(AccountFilter(subject: sub, team: team, app: app), in: session).first
        }
    }

    func history(_ sub: String) async throws -> [AccountChange] {
        try await connection.withSession { session throws(PostgresError) in
            try Accounts.history(AccountFilter(subject: sub), in: session)
        }
    }

    /// The first column of the rows.
    func texts(_ sql: String) async throws -> [String] {
        try await connection.withSession { session throws(PostgresError) in try session.texts(sql) }
    }

    func run(_ script: String) async throws {
        try await connection.withSession { session throws(PostgresError) in try session.execute(script: script) }
    }
}

extension WallTime {
    /// A number of seconds after ``Store/now``; negative for before.
    static func at(_ seconds: Int) -> WallTime {
        Store.now + .seconds(seconds)
    }
}
