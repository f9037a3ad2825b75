import AccountStore
import Basics
import Postgres
import StoreTestSupport
import TestSupport
import Testing

@Suite("Following notifications")
struct NotificationFollowerTests {
    private func next(_ follower: inout NotificationFollower, _ connection: PostgresConnection) async throws -> [String]
    {
        let reading = try await connection.transaction { [follower] session throws(PostgresError) in
            try follower.read(in: session)
        }
        return follower.advance(with: reading).map(\.id)
    }

    @Test("Each notification is found once, even if its transaction began first and is committed last.")
    func lateCommit() async throws {
        try await Store.with { store in
            let reader = try await PostgresConnection.connect(store.database.settings)
            let at = Store.now - .seconds(600)
            try await store.record(.sample("email-disabled", sub: "p", at: at, id: "earlier"))
            var follower = NotificationFollower(NotificationFilter())
            try await store.database.withOpenTransaction { session throws(PostgresError) in
                _ = try Notifications.record(
                    [.sample("email-disabled", sub: "late", at: at, id: "late")],
                    source: .replay,
                    in: session
                )
            } _: {
                #expect(try await next(&follower, reader) == ["earlier"])
                try await store.record(.sample("email-enabled", sub: "p", at: at + .seconds(1), id: "new"))
                #expect(try await next(&follower, reader) == ["new"])
                #expect(try await next(&follower, reader).isEmpty)
            }
            #expect(try await next(&follower, reader) == ["late"])
            #expect(try await next(&follower, reader).isEmpty)
            await reader.close()
        }
    }

    @Test("A filter holds, also for a notification whose transaction began almost a minute ago.")
    func overlap() async throws {
        try await Store.with { store in
            let at = Store.now - .seconds(600)
            var filter = NotificationFilter()
            filter.subject = "other"
            var follower = NotificationFollower(filter)
            #expect(try await next(&follower, store.connection).isEmpty)
            for sub in ["p", "other"] {
                try await store.record(.sample("email-disabled", sub: sub, at: at, id: "of \(sub)"))
            }
            try await store.connection.withSession { session throws(PostgresError) in
                try session.execute(script: "UPDATE siwa.notifications SET recorded_at = now() - interval '50 s'")
            }
            #expect(try await next(&follower, store.connection) == ["of other"])
            #expect(try await next(&follower, store.connection).isEmpty)
        }
    }

    @Test("The limit holds for what was recorded before; the rest of it is not found later.")
    func limit() async throws {
        try await Store.with { store in
            let at = Store.now - .seconds(600)
            for index in 1...3 {
                let time = at + .seconds(index)
                try await store.record(.sample("email-disabled", sub: "p", at: time, id: "\(index)"))
            }
            var filter = NotificationFilter()
            filter.limit = 2
            var follower = NotificationFollower(filter)
            #expect(try await next(&follower, store.connection) == ["2", "3"])
            #expect(try await next(&follower, store.connection).isEmpty)
        }
    }
}
