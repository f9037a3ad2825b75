import Glibc
import Postgres
import TestSupport
import Testing

@Suite("The thread of a connection")
struct ConnectionThreadTests {
    private static func thisThread() -> UInt { UInt(pthread_self()) }

    @Test("After a wait inside onThread, code and later uses of the connection run on the connection's thread.")
    func staysThere() async throws {
        try await withConnection { connection async throws in
            let own = try await connection.withSession { _ throws(PostgresError) in Self.thisThread() }
            let other = Self.thisThread()
            let seen = await connection.onThread {
                var seen: [UInt] = []
                await withCheckedContinuation { waiter in
                    Task.detached { waiter.resume() }
                }
                seen.append(Self.thisThread())
                let used = try? await connection.withSession { session throws(PostgresError) in
                    try session.execute(Statement(once: "SELECT 1::bigint")).int64(0, 0)
                }
                #expect(used == 1)
                seen.append(Self.thisThread())
                return seen
            }
            #expect(other != own)
            #expect(seen == [own, own])
            #expect(Self.thisThread() != own)
        }
    }

    @Test("While a task waits inside onThread, other tasks can use the connection.")
    func concurrentUse() async throws {
        try await withConnection { connection async throws in
            let started = AsyncStream<Void>.makeStream()
            let used = AsyncStream<Void>.makeStream()
            async let waiting: Void = connection.onThread {
                started.continuation.yield()
                for await _ in used.stream { return }
            }
            for await _ in started.stream { break }
            #expect(try await connection.integer("SELECT 1::bigint") == 1)
            used.continuation.yield()
            await waiting
        }
    }
}
