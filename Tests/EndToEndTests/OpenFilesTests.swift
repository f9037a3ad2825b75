import NIOCore
import NIOPosix
import Testing

@Suite("A low limit on open files", .timeLimit(.minutes(10)))
struct OpenFilesTests {
    /// Silent connections.
    private func silent(_ count: Int, to url: String) async throws -> [any Channel] {
        let authority = url.split(separator: "/")[1].split(separator: ":")
        let port = try #require(Int(authority[1]))
        var channels: [any Channel] = []
        for _ in 0..<count {
            channels.append(
                try await ClientBootstrap(group: Web.eventLoops).connect(host: String(authority[0]), port: port).get()
            )
        }
        return channels
    }

    @Test(
        "With more silent connections than files may be open, genuine notifications are stored, and the log names the cause."
    )
    func crowd() async throws {
        try await DaemonFixture.with { fixture in
            let daemon = fixture.start(openFiles: 192)
            let addresses = try await daemon.ready()
            let warning = "fewer connections than configured: the limit of open files is low"
            try await eventually("the warning") { daemon.log.contains { $0.contains(warning) } }
            var channels: [any Channel] = []
            for round in 0..<4 {
                channels += try await silent(100, to: addresses.notifications)
                let body = try fixture.body(fixture.event(id: "\(round)"))
                // Over a new connection: siwad may close a kept one to free its descriptor.
                #expect(try await Web.post(body, to: addresses.notifications, closing: true).status == 200)
            }
            #expect(try await Web.get(addresses.operations + "/readyz").status == 200)
            for channel in channels {
                // The daemon has closed most of them to free descriptors.
                try? await channel.close()
            }
            let body = try fixture.body(fixture.event(id: "4"))
            #expect(try await Web.post(body, to: addresses.notifications, closing: true).status == 200)
            #expect(try await fixture.texts("SELECT count(*)::text FROM siwa.notifications") == ["5"])
            #expect(daemon.status == nil)
        }
    }

    @Test("With more silent connections to the operations endpoint than open files, both endpoints keep answering.")
    func operationsCrowd() async throws {
        try await DaemonFixture.with { fixture in
            let daemon = fixture.start(openFiles: 192)
            let addresses = try await daemon.ready()
            let channels = try await silent(200, to: addresses.operations)
            let body = try fixture.body(fixture.event(id: "1"))
            #expect(try await Web.post(body, to: addresses.notifications, closing: true).status == 200)
            for channel in channels {
                // Fails only if the daemon has closed it.
                try? await channel.close()
            }
            #expect(try await Web.get(addresses.operations + "/readyz").status == 200)
            #expect(daemon.status == nil)
        }
    }

    @Test("With a limit that is too low to work, the start fails and says what to do.")
    func tooFew() async throws {
        try await DaemonFixture.with { fixture in
            let daemon = fixture.start(openFiles: 64)
            #expect(try await daemon.end() == 78)
            let last = try #require(daemon.log.last)
            #expect(last.contains("only 64 files may be open"), "\(last)")
            #expect(last.contains("LimitNOFILE"), "\(last)")
        }
    }
}
