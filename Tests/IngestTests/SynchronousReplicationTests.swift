import Spool
import StoreTestSupport
import TestSupport
import Testing

@testable import Ingest

@Suite("The loss of a synchronous standby", .timeLimit(.minutes(5)))
struct SynchronousReplicationTests {
    @Test(
        "A notification that no standby confirms in time is acknowledged from the spool, and stays there until one does."
    )
    func withSpool() async throws {
        try await TestDatabase.withServer(.siwa) { database in
            let directory = try TemporaryDirectory()
            let spool = try Spool(directory: directory.path, limit: 1 << 30)
            try await IngestFixture.with(database, database.settings, spool: spool) { fixture in
                await fixture.until { $0.service.storage == .database }
                #expect(await fixture.client.answer(try fixture.body(id: "early")) == .acknowledged)
                try await database.blockCommits()
                await fixture.until { $0.service.storage == .database }
                #expect(await fixture.client.answer(try fixture.body(id: "late")) == .acknowledged)
                #expect(fixture.service.spoolBytes ?? 0 > 0)
                // Both are visible on this server when the wait for the standby was given up.
                let ids = "SELECT jti FROM siwa.notifications ORDER BY 1"
                while try await fixture.texts(ids) != ["early", "late"] { await Task.yield() }
                try await database.unblockCommits()
                await fixture.until { $0.service.storage == .database && $0.service.spoolBytes == 0 }
                #expect(
                    try await fixture.texts("SELECT jti FROM siwa.notifications ORDER BY 1") == ["early", "late"]
                )
            }
        }
    }
}
