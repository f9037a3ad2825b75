import Glibc
import JOSE
import Testing

@Suite("siwad tail", .timeLimit(.minutes(10)))
struct TailTests {
    private func jtis(_ lines: [String]) -> [String?] {
        lines.map { try? JSONValue(parsing: Array($0.utf8))["jti"]?.string }
    }

    private func post(
        _ id: String,
        _ fixture: DaemonFixture,
        _ url: String,
        type: String = "email-disabled"
    ) async throws {
        #expect(try await Web.post(fixture.body(fixture.event(type, sub: id, id: id)), to: url).status == 200)
    }

    @Test(
        "Earlier and new notifications are printed once each, and SIGINT or SIGTERM ends it with 0.",
        arguments: [(["tail"], "INT"), (["notifications", "list", "--follow"], "TERM")]
    )
    func signals(command: [String], signal: String) async throws {
        try await DaemonFixture.withDaemon { fixture, _, addresses in
            try await post("earlier", fixture, addresses.notifications)
            let tail = fixture.start(arguments: command + ["--json", "--type", "email-disabled"])
            try await eventually("the earlier notification") { tail.output.count == 1 }
            try await post("other", fixture, addresses.notifications, type: "email-enabled")
            for id in ["one", "two", "three"] { try await post(id, fixture, addresses.notifications) }
            try await eventually("the new notifications") { tail.output.count >= 4 }
            try await post("last", fixture, addresses.notifications)
            try await eventually("the last notification") { tail.output.count >= 5 }
            tail.send(signal)
            #expect(try await tail.end() == 0)
            #expect(jtis(tail.output) == ["earlier", "one", "two", "three", "last"])
            #expect(tail.log.isEmpty, "\(tail.log)")
        }
    }

    @Test("It survives the loss of the database, says so on standard error, and misses nothing.")
    func restart() async throws {
        try await DaemonFixture.withDaemon { fixture, daemon, addresses in
            let tail = fixture.start(arguments: ["tail", "--json"])
            try await post("before", fixture, addresses.notifications)
            try await eventually("the first notification") { tail.output.count == 1 }
            try await fixture.closeDatabase()
            try await eventually("the message about the loss") { tail.log.count == 1 }
            #expect(tail.log[0].hasPrefix("siwad: ") && tail.log[0].hasSuffix(": trying again"), "\(tail.log)")
            try await fixture.openDatabase()
            try await eventually("the daemon to store again") {
                let body = try fixture.body(fixture.event(sub: "after", id: "after"))
                return try await Web.post(body, to: addresses.notifications).status == 200
            }
            try await eventually("the notification after the loss") { tail.output.count >= 2 }
            tail.send("INT")
            #expect(try await tail.end() == 0)
            #expect(jtis(tail.output) == ["before", "after"])
            #expect(tail.log.last == "siwad: connected again; no notification was missed")
        }
    }

    @Test("A closed pipe ends it with 0, even if no notification arrives any more.")
    func closedPipe() async throws {
        try await DaemonFixture.withDaemon { fixture, _, addresses in
            try await post("one", fixture, addresses.notifications)
            let script = #""$@" | head -n 1; echo "status ${PIPESTATUS[0]}""#
            let tail = fixture.start(arguments: ["tail", "--json"], under: ["/bin/bash", "-c", script, "bash"])
            #expect(try await tail.end() == 0)
            #expect(jtis(Array(tail.output.prefix(1))) == ["one"])
            #expect(tail.output.last == "status 0")
            #expect(tail.log.isEmpty, "\(tail.log)")
        }
    }

    @Test("Without a database it ends with an error instead of trying for ever.")
    func noDatabase() async throws {
        let away = try await siwad(["tail"], environment: ["SIWAD_DATABASE_URL": "host=/nonexistent dbname=siwa"])
        #expect(away.status == 69)
        #expect(away.errors.contains("/nonexistent") && away.errorLines.count == 1, "\(away.errors)")
        let none = try await siwad(["tail"])
        #expect(none.status == 78)
        #expect(none.errors.contains("set SIWAD_DATABASE_URL"))
        #expect(try await siwad(["notifications", "list", "--follow", "--until", "today"]).status == 64)
    }

    @Test("On a terminal, the header comes first and the rows are aligned with it.", arguments: [80, 200])
    func table(columns: Int) async throws {
        try await DaemonFixture.withDaemon { fixture, _, addresses in
            try await post("one", fixture, addresses.notifications)
            // script(1) provides the terminal.
            let script = "exec script -qec \"stty cols \(columns); exec $1 tail\" /dev/null"
            let tail = fixture.start(["NO_COLOR": "1"], arguments: [], under: ["/bin/sh", "-c", script, "sh"])
            try await eventually("the first row") { tail.output.count >= 2 }
            try await post("two", fixture, addresses.notifications)
            try await eventually("the second row") { tail.output.count >= 3 }
            await tail.kill()
            let lines = tail.output.map { $0.filter { !$0.isNewline } }
            let header = try #require(lines.first)
            for title in ["TYPE", "SUB", "OUTCOME", "JTI"] {
                let place = try #require(header.firstRange(of: title)?.lowerBound).utf16Offset(in: header)
                for line in lines { #expect(Array(line)[place] != " " && Array(line)[place - 1] == " ", "\(lines)") }
            }
            #expect(lines.allSatisfy { $0.count <= columns })
        }
    }
}
