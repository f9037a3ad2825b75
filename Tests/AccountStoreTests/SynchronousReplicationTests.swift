import AccountStore
import AppleTokens
import Postgres
import StoreTestSupport
import TestSupport
import Testing

@Suite("Storing while no standby confirms commits", .timeLimit(.minutes(5)))
struct SynchronousReplicationTests {
    /// The error of `body` with a deadline; nil if it succeeds.
    private func failure(
        on connection: PostgresConnection,
        _ body: @Sendable (borrowing Session) throws(PostgresError) -> Void
    ) async -> PostgresError? {
        do throws(PostgresError) {
            try await connection.withSession(deadline: .seconds(2), body)
            return nil
        } catch {
            return error
        }
    }

    @Test("Planning the statement does not wait for a standby.")
    func planning() async throws {
        try await TestDatabase.withServer(.siwa) { database in
            let connection = try await Store.writer(database)
            try await database.blockCommits()
            let error = await failure(on: connection) { session throws(PostgresError) in
                try Notifications.plan(in: session)
            }
            #expect(error == nil)
            await connection.close()
        }
    }

    @Test("A repeated notification is not reported durable while no standby has confirmed the first one.")
    func again() async throws {
        try await TestDatabase.withServer(.siwa) { database in
            let connection = try await Store.writer(database)
            try await database.blockCommits()
            for _ in 0..<2 {
                let error = await failure(on: connection) { session throws(PostgresError) in
                    let batch = [ReceivedNotification.sample("email-enabled", sub: "p", at: .at(0), id: "known")]
                    _ = try Notifications.record(batch, source: .endpoint, in: session)
                }
                #expect(error?.isOutcomeUnknown == true)
            }
            let error = await failure(on: connection) { session throws(PostgresError) in
                let letter = DeadLetter(
                    reason: .expired,
                    detail: "A sentence.",
                    notificationID: "known",
                    audience: nil,
                    verifiedKeyID: nil,
                    token: [1]
                )
                let received = ReceivedDeadLetter(
                    letter,
                    tokenDigest: [UInt8](repeating: 1, count: 32),
                    receivedAt: .at(0)
                )
                _ = try DeadLetters.record([received], in: session)
            }
            #expect(error?.isOutcomeUnknown == true)
            await connection.close()
        }
    }
}
