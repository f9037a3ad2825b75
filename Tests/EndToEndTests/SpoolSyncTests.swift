import AppleSimulator
import TestSupport
import Testing

@Suite(
    "A power failure after a 200 from the spool",
    .enabled(if: SyncProbe.compiler != nil, "there is no C compiler"),
    .timeLimit(.minutes(10))
)
struct SpoolSyncTests {
    /// Runs a test with a daemon that has a spool and no database.
    private func withoutDatabase(
        _ body: (DaemonFixture, SyncProbe, DaemonProcess.Addresses, _ spool: String) async throws -> Void
    ) async throws {
        try await TemporaryDirectory.with { directory in
            let probe = try await SyncProbe(in: directory)
            let spool = directory.file("spool")
            try await DaemonFixture.with { fixture in
                let daemon = fixture.start(["SIWAD_SPOOL_DIRECTORY": spool], under: probe.command)
                let addresses = try await daemon.ready()
                try await fixture.closeDatabase()
                try await body(fixture, probe, addresses, spool)
            }
        }
    }

    /// The files of a spool that wait for PostgreSQL.
    private func files(in spool: String) throws -> [String] {
        try TemporaryDirectory.names(at: spool).filter { !$0.hasPrefix(".") }
    }

    @Test("Before the response, the file is synced, then gets its name, and then the directory is synced.")
    func order() async throws {
        try await withoutDatabase { fixture, probe, addresses, spool in
            let response = try await Web.post(fixture.body(fixture.event()), to: addresses.notifications)
            let calls = try probe.calls
            #expect(response.status == 200)
            let file = try #require(try files(in: spool).first)
            let named = try #require(calls.firstIndex(of: "rename \(file)"), "\(calls)")
            #expect(calls[..<named].last == "fsync \(spool)/.\(file).unfinished", "\(calls)")
            #expect(calls[(named + 1)...].first == "fsync \(spool)", "\(calls)")
        }
    }

    @Test(
        "A notification whose file or directory can't be synced is answered 503 and leaves no file.",
        arguments: SyncProbe.Kind.allCases
    )
    func fault(kind: SyncProbe.Kind) async throws {
        try await withoutDatabase { fixture, probe, addresses, spool in
            let body = try fixture.body(fixture.event())
            try probe.fail(kind)
            let response = try await Web.post(body, to: addresses.notifications)
            #expect(response.status == 503 && response.reason == "database-unavailable", "\(response)")
            #expect(try files(in: spool) == [])
            try probe.succeed(kind)
            try await eventually("the spool to be used again") {
                try await Web.post(body, to: addresses.notifications).status == 200
            }
            #expect(try files(in: spool).count == 1)
        }
    }
}
