import AppleSimulator
import Testing

@Suite("The end of the daemon", .timeLimit(.minutes(10)))
struct ShutdownTests {
    @Test("SIGTERM: readiness drops, nothing more is accepted, what is under way is stored and answered, then exit 0.")
    func drain() async throws {
        // In turn: what is under way is given up after 20 seconds, which a machine that others load can take for these steps.
        try await Turn.take {
            try await Scene.withDaemon { scene, daemon, addresses in
                try await scene.stallCommits()
                let body = try scene.body(scene.event(id: "under way"))
                async let answer = Web.post(body, to: addresses.notifications)
                try await scene.untilStalled()
                daemon.send("TERM")
                try await eventually("readiness to drop") {
                    try await Web.get(addresses.operations + "/readyz").status == 503
                }
                #expect(try await Web.get(addresses.operations + "/livez").status == 200)
                try await eventually("connections to be refused") {
                    do {
                        _ = try await Web.post("{}", to: addresses.notifications)
                        return false
                    } catch {
                        return true
                    }
                }
                #expect(daemon.status == nil)
                try await scene.letCommit()
                let drained = try await answer
                #expect(drained.status == 200)
                #expect(drained.fields["connection"] == "close")
                #expect(try await daemon.end() == 0)
                #expect(try await scene.texts("SELECT jti FROM siwa.notifications") == ["under way"])
                #expect(daemon.log.last?.contains("\"stopped\"") == true)
            }
        }
    }

    @Test("SIGTERM ends an idle daemon at once, with 0, and gives its connections back.")
    func idle() async throws {
        try await Scene.withDaemon { scene, daemon, addresses in
            // A connection that is kept alive must not keep the daemon alive.
            #expect(try await Web.post("{}", to: addresses.notifications).status == 400)
            daemon.send("TERM")
            #expect(try await daemon.end(within: .seconds(10)) == 0)
            try await eventually("the connections to be gone") {
                try await scene.texts(
                    "SELECT application_name FROM pg_stat_activity"
                        + " WHERE datname = current_database() AND application_name = 'siwad'"
                ).isEmpty
            }
        }
    }

    @Test("Past the grace the daemon ends although a commit is still stalled, and nobody was told 200.")
    func grace() async throws {
        try await Scene.withDaemon(["SIWAD_SHUTDOWN_GRACE": "1s"]) { scene, daemon, addresses in
            try await scene.stallCommits()
            let body = try scene.body(scene.event())
            async let answer = try? Web.post(body, to: addresses.notifications)
            try await scene.untilStalled()
            daemon.send("TERM")
            _ = try await daemon.end(within: .seconds(30))
            let status = await answer?.status
            #expect(status != 200)
            try await scene.letCommit()
        }
    }

    @Test("After kill -9 the next daemon serves at once; nothing is left that would stop it.")
    func killed() async throws {
        try await Scene.withDaemon { scene, daemon, addresses in
            let body = try scene.body(scene.event(id: "again"))
            #expect(try await Web.post(body, to: addresses.notifications).status == 200)
            await daemon.kill()
            #expect(daemon.status == 137)
            try await scene.withDaemon { _, addresses async throws in
                #expect(try await Web.post(body, to: addresses.notifications).status == 200)
            }
            #expect(try await scene.texts("SELECT jti FROM siwa.notifications") == ["again"])
        }
    }
}
