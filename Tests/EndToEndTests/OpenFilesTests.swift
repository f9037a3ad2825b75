import NIOCore
import NIOPosix
import Testing

@Suite("Few file descriptors", .timeLimit(.minutes(10)))
struct OpenFilesTests {
    /// Connections on which nobody says a word.
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
        "More silent connections than files may be open: the log says why, and what is genuine is stored all the same."
    )
    func crowd() async throws {
        try await Scene.with { scene in
            let daemon = scene.start(openFiles: 192)
            let addresses = try await daemon.ready()
            let warning = "fewer connections than configured: the limit of open files is low"
            #expect(daemon.log.contains { $0.contains(warning) })
            var channels: [any Channel] = []
            for round in 0..<4 {
                channels += try await silent(100, to: addresses.notifications)
                let body = try scene.body(scene.event(id: "\(round)"))
                // On a connection of its own: one that was kept may be the next to make room.
                #expect(try await Web.post(body, to: addresses.notifications, closing: true).status == 200)
            }
            #expect(try await Web.get(addresses.operations + "/readyz").status == 200)
            for channel in channels {
                // Most were closed by the daemon, which made room.
                try? await channel.close()
            }
            let body = try scene.body(scene.event(id: "4"))
            #expect(try await Web.post(body, to: addresses.notifications, closing: true).status == 200)
            #expect(try await scene.texts("SELECT count(*)::text FROM siwa.notifications") == ["5"])
            #expect(daemon.status == nil)
        }
    }

    @Test("Too few to work with are refused at the start, with what to do.")
    func tooFew() async throws {
        try await Scene.with { scene in
            let daemon = scene.start(openFiles: 64)
            #expect(try await daemon.end() == 78)
            let last = try #require(daemon.log.last)
            #expect(last.contains("only 64 files may be open"), "\(last)")
            #expect(last.contains("LimitNOFILE"), "\(last)")
        }
    }
}
