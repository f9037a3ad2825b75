import AppleTokens
import Spool
import StoreTestSupport
import TestSupport
import Testing

@testable import Ingest

@Suite("Spooled notifications that the server refuses", .timeLimit(.minutes(5)))
struct SpoolRefusalTests {
    /// Runs a test with notifications about 20 people in the spool, and a server that refuses those whose sub matches.
    private func withRefusals(
        of people: String,
        count: Int = 20,
        _ body: (IngestFixture, DaemonRole, TemporaryDirectory) async throws -> Void
    ) async throws {
        try await TestDatabase.with(.siwa) { database in
            try await DaemonRole.with(database) { role in
                let directory = try TemporaryDirectory()
                let spool = try Spool(directory: directory.path, limit: 1 << 30)
                try await IngestFixture.with(database, role.settings, spool: spool) { fixture in
                    await fixture.until { $0.service.storage == .database }
                    // As an application's trigger may raise it: not a class that blames the data.
                    try await fixture.run(
                        """
                        CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS $$
                        BEGIN
                            RAISE EXCEPTION 'not today';
                        END $$;
                        CREATE TRIGGER refuse BEFORE INSERT ON siwa.accounts FOR EACH ROW WHEN (NEW.sub \(people))
                            EXECUTE FUNCTION public.refuse()
                        """
                    )
                    try await role.shutOut()
                    let bodies = try (0..<count).map { try fixture.body(sub: "person\($0)", id: "\($0)") }
                    #expect(await fixture.client.answers(bodies).allSatisfy { $0 == .acknowledged })
                    // The answers come before the connection is given up.
                    await fixture.until { $0.service.storage == .spool }
                    try await role.letIn()
                    try await body(fixture, role, directory)
                }
            }
        }
    }

    @Test("A refused notification stays in a .refused.spool file, delays no other, and is removed when it is stored.")
    func one() async throws {
        try await withRefusals(of: "IN ('person7', 'person11')") { fixture, _, directory in
            await fixture.until { $0.log.count("PostgreSQL refuses notifications that wait in the spool") == 1 }
            await fixture.until { $0.service.storage == .database }
            #expect(try await fixture.texts("SELECT count(*)::text FROM siwa.notifications") == ["18"])
            #expect(try await fixture.texts("SELECT reason FROM siwa.dead_letters").isEmpty, "it is not blamed")
            let names = try directory.spoolFiles
            #expect(names.count == 2 && names.allSatisfy { $0.hasSuffix(".refused.spool") }, "\(names)")
            // Live traffic has the database, not the spool.
            #expect(await fixture.client.answer(try fixture.body(id: "live")) == .acknowledged)
            let source = try await fixture.texts("SELECT source FROM siwa.notifications WHERE jti = 'live'")
            #expect(source == ["endpoint"])
            try await fixture.run("DROP TRIGGER refuse ON siwa.accounts")
            await fixture.until { $0.service.spoolBytes == 0 }
            let stored = try await fixture.texts(
                "SELECT jti FROM siwa.notifications WHERE source = 'spool' AND jti IN ('7', '11') ORDER BY jti"
            )
            #expect(stored == ["11", "7"])
            #expect(try directory.spoolFiles.isEmpty)
        }
    }

    @Test("If the server accepts only one of many notifications, that one is stored and the connection stays in use.")
    func most() async throws {
        try await withRefusals(of: "LIKE 'person%' AND NEW.sub <> 'person7'") { fixture, _, directory in
            await fixture.until { $0.service.storage == .database }
            #expect(try await fixture.texts("SELECT jti FROM siwa.notifications") == ["7"])
            let names = try directory.spoolFiles
            #expect(names.count == 19 && names.allSatisfy { $0.hasSuffix(".refused.spool") }, "\(names)")
            try await fixture.run("DROP TRIGGER refuse ON siwa.accounts")
            await fixture.until { $0.service.spoolBytes == 0 }
            #expect(try await fixture.texts("SELECT count(*)::text FROM siwa.notifications") == ["20"])
        }
    }

    @Test("A refused notification that is alone in the spool does not keep siwad from the database.")
    func alone() async throws {
        try await withRefusals(of: "= 'person0'", count: 1) { fixture, _, directory in
            await fixture.until { $0.service.storage == .database }
            #expect(await fixture.client.answer(try fixture.body(id: "live")) == .acknowledged)
            #expect(try await fixture.texts("SELECT jti FROM siwa.notifications") == ["live"])
            let names = try directory.spoolFiles
            #expect(names.count == 1 && names[0].hasSuffix(".refused.spool"), "\(names)")
        }
    }

    @Test("If the server refuses everything, nothing is set apart, and everything is stored later.")
    func all() async throws {
        try await withRefusals(of: "IS NOT NULL") { fixture, _, directory in
            await fixture.until { $0.log.count("P0001") > 0 }
            await fixture.until { $0.service.storage == .spool }
            #expect(try directory.spoolFiles.allSatisfy { !$0.contains("refused") })
            try await fixture.run("DROP TRIGGER refuse ON siwa.accounts")
            await fixture.until { $0.service.spoolBytes == 0 }
            #expect(try await fixture.texts("SELECT count(*)::text FROM siwa.notifications") == ["20"])
            #expect(fixture.log.count("PostgreSQL refuses notifications that wait in the spool") == 0)
        }
    }

    @Test("Notifications that one process set apart are tried again by the next one.")
    func restart() async throws {
        try await withRefusals(of: "= 'person7'") { fixture, role, directory in
            await fixture.until { $0.log.count("PostgreSQL refuses notifications that wait in the spool") == 1 }
            let names = try directory.spoolFiles
            #expect(names.count == 1)
            let copy = try TemporaryDirectory()
            try copy.write([], to: ".siwad-spool")
            for name in names { try copy.write(try directory.content(name), to: name) }
            try await fixture.run("DROP TRIGGER refuse ON siwa.accounts")
            let spool = try Spool(directory: copy.path, limit: 1 << 30)
            try await IngestFixture.with(fixture.database, role.settings, spool: spool) { second in
                await second.until { $0.service.storage == .database && $0.service.spoolBytes == 0 }
                let stored = try await second.texts("SELECT count(*)::text FROM siwa.notifications")
                #expect(stored == ["20"])
            }
        }
    }
}
