import Postgres
import StoreTestSupport
import TestSupport
import Testing

@Suite("Commands of siwad endpoints at the same time", .timeLimit(.minutes(10)))
struct EndpointConcurrencyTests {
    /// The siwad commands that wait for a lock.
    private static let waiting = """
        SELECT pid::text FROM pg_stat_activity
        WHERE datname = current_database() AND application_name = 'siwad' AND wait_event_type = 'Lock'
        """

    @Test("An edit keeps what an edit or an apply at the same time has changed.", arguments: [false, true])
    func simultaneousChanges(isApplied: Bool) async throws {
        try await TestDatabase.with(.siwa) { database in
            try await DaemonFixture.with(database.conninfo) { fixture in
                try await TemporaryDirectory.with { directory in
                    try await fixture.endpoints("add shop --url \(DaemonFixture.receiverURL)")
                    let text = #"{"endpoints": {"shop": {"url": "\#(DaemonFixture.receiverURL)", "timeout": "5s"}}}"#
                    let file = try directory.write("endpoints.json", text)
                    let first = isApplied ? ["apply", file] : ["edit", "shop", "--timeout", "5s"]
                    let commands = try await database.withOpenTransaction { session throws(PostgresError) in
                        try session.execute(script: "SELECT FROM siwa.endpoints FOR UPDATE")
                    } _: {
                        var commands: [DaemonProcess] = []
                        for words in [first, ["edit", "shop", "--rate", "0.5"]] {
                            let arguments = ["endpoints"] + words + ["--note", "why"]
                            commands.append(fixture.start(Sealing.settings, arguments: arguments))
                            let count = commands.count
                            try await eventually("\(count) to wait") {
                                try await fixture.texts(Self.waiting).count == count
                            }
                        }
                        return commands
                    }
                    for command in commands { #expect(try await command.end() == 0, "\(command.log)") }
                    let row = "SELECT concat_ws(' ', timeout, rate, revision) FROM siwa.endpoints"
                    #expect(try await fixture.texts(row) == ["00:00:05 0.5 3"])
                }
            }
        }
    }

    @Test("apply locks the publication before the endpoints, as remove does, so neither waits for the other forever.")
    func lockOrder() async throws {
        try await TestDatabase.with(.siwa) { database in
            try await DaemonFixture.with(database.conninfo) { fixture in
                try await TemporaryDirectory.with { directory in
                    try await fixture.endpoints("add shop --url \(DaemonFixture.receiverURL)")
                    let added = #""crm": {"url": "https://crm.example.com/"}"#
                    let changed = #""shop": {"url": "https://shop.example.com/", "timeout": "5s"}"#
                    let file = try directory.write("endpoints.json", #"{"endpoints": {\#(changed), \#(added)}}"#)
                    let apply = try await database.withOpenTransaction { session throws(PostgresError) in
                        try session.execute(script: "SELECT FROM siwa.publication FOR UPDATE")
                    } _: {
                        let arguments = ["endpoints", "apply", file, "--note", "why"]
                        let apply = fixture.start(Sealing.settings, arguments: arguments)
                        try await eventually("apply to wait") { try await fixture.texts(Self.waiting).count == 1 }
                        let unlocked = "SELECT name FROM siwa.endpoints FOR UPDATE SKIP LOCKED"
                        #expect(try await fixture.texts(unlocked) == ["shop"])
                        return apply
                    }
                    #expect(try await apply.end() == 0, "\(apply.log)")
                    let rows = "SELECT name || ' ' || timeout FROM siwa.endpoints ORDER BY name"
                    #expect(try await fixture.texts(rows) == ["crm 00:00:15", "shop 00:00:05"])
                }
            }
        }
    }

    @Test(
        "An endpoint that somebody pauses while it is filled stays paused, and the command says so; resuming it is right.",
        arguments: ["pause", "resume"]
    )
    func changedWhileFilled(verb: String) async throws {
        try await TestDatabase.with(.siwa) { database in
            try await DaemonFixture.with(database.conninfo) { fixture in
                try await fixture.endpoints("add other --url \(DaemonFixture.receiverURL) --type consent.authorized")
                try await Changes.publish(2, in: fixture)
                let add = try await database.withOpenTransaction { session throws(PostgresError) in
                    try session.execute(script: "LOCK TABLE siwa.deliveries IN SHARE MODE")
                } _: {
                    let arguments = [
                        "endpoints", "add", "shop", "--url", DaemonFixture.receiverURL, "--from-start", "--note", "why",
                    ]
                    let add = fixture.start(Sealing.settings, arguments: arguments)
                    try await eventually("the command to fill it") { try await fixture.texts(Self.waiting).count == 1 }
                    try await fixture.endpoints("\(verb) shop")
                    return add
                }
                let isPaused = verb == "pause"
                #expect(try await add.end() == (isPaused ? 1 : 0))
                let step = "siwad endpoints resume shop --note"
                #expect(add.log.contains { $0.contains(step) } == isPaused, "\(add.log)")
                let status = "SELECT status FROM siwa.endpoints WHERE name = 'shop'"
                #expect(try await fixture.texts(status) == [isPaused ? "paused" : "enabled"])
                #expect(try await fixture.audit().last == "endpoints \(verb): shop: why")
                if isPaused { try await fixture.endpoints("resume shop") }
                #expect(try await fixture.texts(status) == ["enabled"])
            }
        }
    }

    @Test("A removal that is interrupted says that the endpoint is paused, and how to go on.")
    func interruptedRemoval() async throws {
        try await TestDatabase.with(.siwa) { database in
            try await DaemonFixture.with(database.conninfo) { fixture in
                try await fixture.endpoints("add shop --url \(DaemonFixture.receiverURL) --type consent.authorized")
                try await Changes.publish(2, in: fixture)
                let remove = try await database.withOpenTransaction { session throws(PostgresError) in
                    try session.execute(script: "SELECT FROM siwa.deliveries WHERE position = 2 FOR UPDATE")
                } _: {
                    let remove = fixture.start(arguments: ["endpoints", "remove", "shop", "--note", "why"])
                    try await eventually("the command to wait") { try await fixture.texts(Self.waiting).count == 1 }
                    remove.send("INT")
                    #expect(try await remove.end(within: .seconds(8)) != 0)
                    return remove
                }
                let words = "shop is paused, and 0 of its deliveries are deleted; siwad endpoints remove shop --note"
                #expect(remove.log.contains { $0.contains(words) }, "\(remove.log)")
                try await fixture.endpoints("remove shop")
                #expect(try await fixture.texts("SELECT name FROM siwa.endpoints").isEmpty)
            }
        }
    }
}
