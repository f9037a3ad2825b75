import AccountStore
import AppleTokens
import Basics
import Postgres
import StoreTestSupport
import Synchronization
import TestSupport
import Testing

@Suite("Locks of sign-ins, notifications, maintenance and operators", .timeLimit(.minutes(10)))
struct SignInDeadlockTests {
    private static let operations = LongVariants.areWanted ? 10_000 : 1_500
    private static let people = 6

    /// What the workers share.
    private final class Progress: Sendable {
        let next = Atomic(0)
        let counts = Mutex<[String: Int]>([:])
    }

    @Test("Random sign-ins, exchanges, notifications, erasures and rotations never wait for each other in a circle.")
    func noDeadlock() async throws {
        try await Store.with { store in
            let progress = Progress()
            try await withThrowingTaskGroup { group in
                for worker in 0..<4 {
                    group.addTask {
                        let connection = try await Store.writer(store.database)
                        var generator = SeededGenerator(seed: UInt64(worker) &+ 98)
                        while true {
                            let number = progress.next.add(1, ordering: .relaxed).newValue
                            guard number <= Self.operations else { break }
                            let name = try await Self.perform(number, on: connection, using: &generator)
                            progress.counts.withLock { $0[name, default: 0] += 1 }
                        }
                        await connection.close()
                    }
                }
                try await group.waitForAll()
            }
            let done = progress.counts.withLock { $0 }
            #expect(done.values.reduce(0, +) == Self.operations)
            #expect(done["settled", default: 0] > Self.operations / 50, "\(done)")
            // Every session rests on a sign-in, and every settled one has its account and at most one session.
            let orphans = """
                SELECT o.session_id FROM siwa.account_sessions AS o
                LEFT JOIN siwa.sign_ins AS s ON s.session_id = o.session_id AND s.account_id = o.account_id
                GROUP BY 1 HAVING count(s.settled_at) <> 1
                """
            #expect(try await store.texts(orphans).isEmpty)
            // No statement above failed, so there was no deadlock.
        }
    }

    /// Performs a random operation, and names it.
    private static func perform(
        _ number: Int,
        on connection: PostgresConnection,
        using generator: inout SeededGenerator
    ) async throws -> String {
        let sub = "p\(Int.random(in: 0..<people, using: &generator)).\(number / 400)"
        let second = number
        switch Int.random(in: 0..<20, using: &generator) {
        case 0...9: return try await signIn(number, sub, at: second, on: connection)
        case 10, 11: return try await exchange(on: connection)
        case 12...15:
            let batch = (0..<3).map { index in
                let sub = "p\(Int.random(in: 0..<people, using: &generator)).\(number / 400)"
                let types = ["consent-revoked", "email-disabled", "email-enabled"]
                let isLast = Int.random(in: 0..<40, using: &generator) == 0
                let type = isLast ? "account-deleted" : types[Int.random(in: 0..<3, using: &generator)]
                return ReceivedNotification.sample(
                    type,
                    sub: sub,
                    at: .at(second - 5),
                    id: "\(number)/\(index)",
                    email: type.hasPrefix("email") ? "\(number)@b" : nil
                )
            }
            return try await record(batch, on: connection)
        case 16: return try await maintain(.erasure, on: connection)
        case 17: return try await maintain(.tokens, on: connection)
        case 18: return try await rotate(on: connection)
        default:
            try await connection.withSession { session throws(PostgresError) in
                _ = try session.execute(once: "SELECT siwa.end_sessions('com.example.one', $1)", sub)
            }
            return "ended"
        }
    }

    private static func signIn(
        _ number: Int,
        _ sub: String,
        at second: Int,
        on connection: PostgresConnection
    ) async throws -> String {
        // Two numbers share a token, so that some requests meet the same row.
        let new = NewSignIn.sample(
            "\(number / 2)",
            of: sub,
            at: .at(second),
            session: "\(number / 2)",
            device: SignInDevice(platform: "ios", model: nil, label: nil)
        )
        if number.isMultiple(of: 5) {
            let other = "p\(number % people).\(number / 400)"
            let people = other == sub ? [sub] : [sub, other]
            let batch = people.map { Settlement.sample(0, of: $0, at: .at(second), session: "\(number / 2) \($0)") }
            let unreserved = people.map {
                NewSignIn.sample("\(number / 2) \($0)", of: $0, at: .at(second), session: "\(number / 2) \($0)")
            }
            if try await isSettledTogether(batch, unreserved: unreserved, on: connection) { return "settled" }
        }
        let reservation = try await connection.withSession { session throws(PostgresError) in
            try SignIns.reserve(new, in: session)
        }
        guard let id = reservation.signInID else { return "not reserved" }
        let refresh: RefreshState = number % 3 == 0 ? .pending(sealedCode: [1], due: .at(0)) : .stored
        let name = Settlement.Name(given: "\(number)", family: nil)
        let settlement = Settlement.sample(
            id,
            of: sub,
            at: .at(second),
            name: name,
            refresh: refresh,
            session: new.sessionID
        )
        if number % 4 < 2, try await isSettledTogether([settlement], on: connection) { return "settled" }
        let settled = try await connection.transaction { session throws(PostgresError) in
            try Store.settle(settlement, in: session)
        }
        return settled.answer == nil ? "not settled" : "settled"
    }

    /// Settles them with the statement for several, which may leave them, or fail because of another worker.
    private static func isSettledTogether(
        _ batch: [Settlement],
        unreserved: [NewSignIn?] = [],
        on connection: PostgresConnection
    ) async throws -> Bool {
        var settled: [SettledSignIn?] = []
        do throws(PostgresError) {
            settled = try await connection.transaction { session throws(PostgresError) in
                try SignIns.beginBatch(in: session)
                return try Store.settleTogether(batch, unreserved: unreserved, in: session)
            }
        } catch {
            let isInterference = [.serializationFailure, .lockNotAvailable].contains(error.sqlState)
            if !isInterference, error.sqlState?.classCode != "23" { throw error }
        }
        return settled.contains { $0 != nil }
    }

    private static func exchange(on connection: PostgresConnection) async throws -> String {
        let pending = try await connection.withSession { session throws(PostgresError) in
            try SignIns.pendingExchanges(of: [ClientID("com.example.one")], limit: 3, in: session)
        }
        for exchange in pending {
            try await connection.transaction { session throws(PostgresError) in
                _ = try SignIns.finishExchange(exchange.signInID, .stored(Store.token), in: session)
            }
        }
        return "exchanged"
    }

    private static func record(_ batch: [ReceivedNotification], on connection: PostgresConnection) async throws
        -> String
    {
        while true {
            do throws(PostgresError) {
                try await connection.withSession { session throws(PostgresError) in
                    _ = try Notifications.record(batch, source: .endpoint, in: session)
                }
                return "recorded"
            } catch {
                guard error.sqlState == .serializationFailure else { throw error }
            }
        }
    }

    /// Performs a task as a daemon does, unless another worker performs one.
    private static func maintain(_ task: MaintenanceTask, on connection: PostgresConnection) async throws -> String {
        let now = Store.now + .days(60)
        var previous: MaintenanceStep?
        while previous?.isLast != true {
            previous = try await connection.transaction { [previous] session throws(PostgresError) in
                guard case .granted = try Maintenance.claim(task, every: .zero, in: session) else { return nil }
                return try Maintenance.step(of: task, after: previous, Store.policy, now: now, in: session)
            }
            if previous == nil { break }
        }
        return task.rawValue
    }

    /// Seals the tokens again, as `siwad sealing rotate` does.
    private static func rotate(on connection: PostgresConnection) async throws -> String {
        try await connection.transaction { session throws(PostgresError) in
            let rows = try SealedColumn.appleTokens.rows(after: nil, limit: 500, locking: true, in: session)
            try SealedColumn.appleTokens.replace(rows, in: session)
        }
        return "rotated"
    }
}
