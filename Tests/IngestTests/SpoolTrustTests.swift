import AppleTokens
import AppleSimulator
import Basics
import Glibc
import JOSE
import Spool
import StoreTestSupport
import Telemetry
import TestSupport
import Testing

@testable import Ingest

@Suite("Spool files that siwad did not write", .timeLimit(.minutes(5)))
struct SpoolTrustTests {
    /// Runs a test with a service whose database is away, and puts records into its spool as another process would.
    private func withSpool(
        _ records: (IngestFixture) async throws -> [SpoolRecord],
        _ body: (IngestFixture, TemporaryDirectory) async throws -> Void
    ) async throws {
        try await TestDatabase.with(.siwa) { database in
            try await DaemonRole.with(database) { role in
                let directory = try TemporaryDirectory()
                let spool = try Spool(directory: directory.path, limit: 1 << 30)
                try await IngestFixture.with(database, role.settings, spool: spool) { fixture in
                    await fixture.until { $0.service.storage == .database }
                    try await role.shutOut()
                    #expect(await fixture.client.answer(try fixture.body(id: "genuine")) == .acknowledged)
                    await fixture.until { $0.service.storage == .spool }
                    let elsewhere = try TemporaryDirectory()
                    let other = try Spool(directory: elsewhere.path, limit: 1 << 30)
                    try await other.append(try await records(fixture))
                    for name in try elsewhere.spoolFiles where name.hasSuffix(".spool") {
                        try directory.write(try elsewhere.content(name), to: name)
                        chmod(directory.file(name), 0o600)
                    }
                    try await role.letIn()
                    try await body(fixture, directory)
                }
            }
        }
    }

    /// Waits until a notification is stored and everything else in the spool is dealt with.
    private func untilStored(_ id: String, _ fixture: IngestFixture) async throws {
        let found = "SELECT jti FROM siwa.notifications WHERE jti = '\(id)'"
        while try await fixture.texts(found).isEmpty { await Task.yield() }
        await fixture.until { $0.service.storage == .database && $0.service.spoolBytes == 0 }
    }

    /// A record that says that a key verified it.
    private func record(
        _ type: String = "account-delete",
        id: String,
        signedBy signer: SimulatedApple,
        _ fixture: IngestFixture
    ) throws -> SpoolRecord {
        let body = try fixture.body(type, sub: "victim", id: id, signedBy: signer)
        return SpoolRecord(
            receivedAt: fixture.service.now().microseconds,
            keyID: signer.keyID,
            body: try NotificationBody.token(in: Array(body.utf8).span)
        )
    }

    @Test(
        "A notification with a bad signature is never applied; the others in its file are.",
        arguments: [true, false]
    )
    func forged(_ isCurrent: Bool) async throws {
        try await withSpool { fixture in
            let apple = isCurrent ? fixture.apple : try SimulatedApple.generate()
            // A key that Apple's set has no more is among the stored ones.
            if !isCurrent { try await fixture.keepKeys(of: apple) }
            let forger = try SimulatedApple(key: .generate(), keyID: apple.keyID)
            return [
                try record("email-disabled", id: "first", signedBy: apple, fixture),
                try record(id: "forged", signedBy: forger, fixture),
                try record("email-disabled", id: "last", signedBy: apple, fixture),
            ]
        } _: { fixture, directory in
            try await untilStored("last", fixture)
            let stored = try await fixture.texts("SELECT jti FROM siwa.notifications ORDER BY 1")
            #expect(stored == ["first", "genuine", "last"])
            let state = try await fixture.texts("SELECT state FROM siwa.account_states WHERE sub = 'victim'")
            #expect(state == ["unknown"])
            #expect(try await fixture.texts("SELECT reason FROM siwa.dead_letters").isEmpty)
            let kept = try directory.spoolFiles.filter { $0.hasSuffix(".forged") }
            #expect(kept.count == 1)
            #expect(fixture.log.count(".forged") == 1)
            let text = fixture.metrics.registry.prometheusText()
            #expect(text.contains(#"siwad_spool_files_set_aside_total{reason="forged"} 1"#))
            #expect(text.contains("siwad_spool_unverified_total 0"))
        }
    }

    @Test("A notification that was verified at receipt, and whose key is no longer known, is applied with a warning.")
    func unknownKey() async throws {
        try await withSpool { fixture in
            [try record(id: "old key", signedBy: SimulatedApple.generate(), fixture)]
        } _: { fixture, _ in
            try await untilStored("old key", fixture)
            let state = try await fixture.texts("SELECT state FROM siwa.account_states WHERE sub = 'victim'")
            #expect(state == ["deleted"])
            // Only what is stored is reported.
            await fixture.until { $0.log.count("could not be verified again") == 1 }
            let text = fixture.metrics.registry.prometheusText()
            #expect(text.contains("siwad_spool_unverified_total 1"))
        }
    }

    @Test(
        "A file that other users own or can write is not read, and delays no other.",
        arguments: [0o620, 0o602, 0o600]
    )
    func untrustedFile(_ mode: Int) async throws {
        // The last one is given to another user, which takes root.
        try #require(mode != 0o600 || geteuid() == 0)
        try await TestDatabase.with(.siwa) { database in
            try await DaemonRole.with(database) { role in
                let directory = try TemporaryDirectory()
                let spool = try Spool(directory: directory.path, limit: 1 << 30)
                try await IngestFixture.with(database, role.settings, spool: spool) { fixture in
                    await fixture.until { $0.service.storage == .database }
                    try await role.shutOut()
                    #expect(await fixture.client.answer(try fixture.body(id: "a")) == .acknowledged)
                    await fixture.until { $0.service.storage == .spool }
                    // Two, if it was overdue when the connection was given up.
                    let names = try directory.spoolFiles.filter { $0.hasSuffix(".spool") }
                    for name in names {
                        chmod(directory.file(name), mode_t(mode))
                        if mode == 0o600 { try #require(chown(directory.file(name), 12_345, 12_345) == 0) }
                    }
                    #expect(await fixture.client.answer(try fixture.body(id: "b")) == .acknowledged)
                    try await role.letIn()
                    await fixture.until { $0.service.storage == .database && $0.service.spoolBytes == 0 }
                    #expect(try await fixture.texts("SELECT jti FROM siwa.notifications") == ["b"])
                    #expect(try !names.isEmpty && Set(names).isSubset(of: directory.spoolFiles))
                    await fixture.until { $0.log.count("is not trusted") == 1 }
                    let registry = fixture.metrics.registry
                    #expect(registry.prometheusText().contains("siwad_spool_untrusted_files \(names.count)"))
                    // Their notification is acknowledged and nowhere else, but not in the metric of what waits.
                    #expect(registry.prometheusText().contains("\nsiwad_spool_bytes 0\n"))
                    // Given back to siwad's user alone, it is stored.
                    for name in names {
                        chown(directory.file(name), geteuid(), getegid())
                        chmod(directory.file(name), 0o600)
                    }
                    while try await fixture.texts("SELECT jti FROM siwa.notifications").count < 2 { await Task.yield() }
                    await fixture.until { _ in registry.prometheusText().contains("siwad_spool_untrusted_files 0") }
                }
            }
        }
    }
}
