import AccountStore
import Postgres
import StoreTestSupport
import Synchronization
import TestSupport
import Testing
import Webhooks

/// Writers of random transactions, publishers and daemons that are killed, and receivers that are no part of siwad.
@Suite(
    "From random transactions to receivers",
    .timeLimit(.minutes(30)),
    .enabled(if: PythonProgram.isAvailable, PythonProgram.missing)
)
struct CompleteDeliveryTests {
    private static let changes = LongVariants.areWanted ? 100_000 : 2_000
    private static let people = changes / 10
    private static let kills = LongVariants.areWanted ? 50 : 4
    /// The least number of publishers that are killed.
    private static let publisherKills = LongVariants.areWanted ? 10 : 2
    private static let writers = 6
    private static let concurrency = 8

    /// What the writers did, and the faults.
    private final class Ledger: Sendable {
        private let changes = Mutex<[String]>([])
        /// The number of publishers that were killed.
        let publishersKilled = Atomic(0)
        let isDone = Atomic(false)

        var hasEnoughKills: Bool {
            publishersKilled.load(ordering: .relaxed) >= CompleteDeliveryTests.publisherKills
        }
        /// Whether the writers may end.
        var isComplete: Bool { count >= CompleteDeliveryTests.changes && hasEnoughKills }

        /// The changes that were committed.
        var kept: [String] { changes.withLock { $0 } }
        var count: Int { changes.withLock { $0.count } }

        func add(_ kept: [String]) { changes.withLock { $0 += kept } }
    }

    /// The changes of an endpoint that its receiver accepted.
    private struct Received {
        var ids: Set<Substring> = []
        var positions: Set<Substring> = []
        /// By person, in the order of their first arrival.
        var changes: [Substring: [Substring]] = [:]
        /// By person, in the order of all arrivals.
        var arrivals: [Substring: [Int64]] = [:]
        var count = 0

        init(_ lines: [[Substring]]) {
            for line in lines {
                let (id, position, sub, change) = (line[0], line[1], line[2], line[3])
                count += 1
                arrivals[sub, default: []].append(Int64(position) ?? 0)
                positions.insert(position)
                if ids.insert(id).inserted { changes[sub, default: []].append(change) }
            }
        }
    }

    @Test("Each committed change reaches each receiver, in each person's order; a kill repeats what was under way.")
    func complete() async throws {
        let seed = UInt64.random(in: 0...UInt64.max)
        try await TemporaryDirectory.with { directory in
            try await DaemonFixture.with { fixture in
                let secrets = try directory.write("secrets", try DaemonFixture.secret.text + "\n")
                let attempt = try await PythonReceiver(fixture, secrets: secrets, isBrief: true)
                let person = try await PythonReceiver(fixture, secrets: secrets, isBrief: true)
                for (ordering, receiver) in [(EndpointConfiguration.Ordering.attempt, attempt), (.person, person)] {
                    try await fixture.addEndpoint(ordering.rawValue, receiver.url) {
                        $0.ordering = ordering
                        $0.retries = Array(repeating: .milliseconds(100), count: 20)
                        $0.concurrency = Self.concurrency
                    }
                }
                try await fixture.run(
                    """
                    SELECT count(siwa.record_sign_in('com.example.one', 'p' || n))
                    FROM generate_series(1, \(Self.people)) AS n
                    """
                )
                let ledger = Ledger()
                let start = ContinuousClock.now
                async let killing: Void = killPublishers(fixture, until: ledger)
                async let writing: Void = write(fixture, seed, ledger)
                let daemons = try await killDaemons(fixture, ledger, receivers: [attempt, person])
                try await writing
                ledger.isDone.store(true, ordering: .relaxed)
                try await killing
                let publishers = ledger.publishersKilled.load(ordering: .relaxed)
                #expect(publishers >= Self.publisherKills)
                let count = ledger.count
                try await fixture.withDaemon(try DaemonFixture.delivering()) { _, _ in
                    try await eventually("all messages", within: .seconds(600)) {
                        [attempt, person].allSatisfy { $0.count >= count }
                    }
                    try await fixture.untilDelivered("attempt delivered \(count)", "person delivered \(count)")
                }
                // What a receiver prints arrives after its responses, and repeats count as lines too.
                try await eventually("the lines of the receivers") {
                    [attempt, person].allSatisfy { Set($0.lines.map(\.first)).count >= count }
                }
                for (receiver, isStrict) in [(attempt, false), (person, true)] {
                    let lines = receiver.lines
                    try #require(lines.allSatisfy { $0.count == 4 }, "each message is accepted")
                    verify(Received(lines), isStrict: isStrict, ledger.kept, kills: daemons, seed)
                }
                let figures = [attempt, person].map { "\($0.count - count) repeated" }.joined(separator: ", ")
                print(
                    "\(count) changes, \(publishers) publishers and \(daemons) daemons killed, "
                        + "\(figures), \(ContinuousClock.now - start), seed \(seed)"
                )
            }
        }
    }

    private func verify(_ received: Received, isStrict: Bool, _ kept: [String], kills: Int, _ seed: UInt64) {
        #expect(received.ids.count == kept.count, "seed \(seed)")
        #expect(received.positions.count == kept.count)
        let changes = received.changes.values.joined()
        #expect(Set(changes) == Set(kept.map { $0[...] }), "seed \(seed)")
        #expect(received.count - kept.count <= kills * Self.concurrency)
        for (sub, own) in received.changes {
            // Each person belongs to one writer, which counts its changes.
            let numbers = own.map { Int($0) ?? 0 }
            #expect(numbers == numbers.sorted(), "\(sub), seed \(seed)")
        }
        for (sub, positions) in received.arrivals where isStrict {
            #expect(positions == positions.sorted(), "\(sub), seed \(seed)")
        }
    }

    // MARK: - Writers

    /// Makes changes of each person in one writer only, and one in a transaction that stays open as long as the others write.
    private func write(_ fixture: DaemonFixture, _ seed: UInt64, _ ledger: Ledger) async throws {
        try await withThrowingTaskGroup { group in
            group.addTask {
                let connection = try await DaemonFixture.connect(fixture.conninfo)
                try await connection.withSession(deadline: .seconds(1_800)) { session throws(PostgresError) in
                    try session.execute(script: "BEGIN")
                    try session.execute(script: Self.change(0, person: 1))
                    while !ledger.isComplete { try session.execute(script: "SELECT pg_sleep(0.1)") }
                    try session.execute(script: "COMMIT")
                }
                ledger.add(["0"])
                await connection.close()
            }
            for writer in 0..<Self.writers {
                let random = SeededGenerator(seed: seed &+ UInt64(writer))
                group.addTask { try await write(fixture, random, writer, ledger) }
            }
            try await group.waitForAll()
        }
    }

    private func write(
        _ fixture: DaemonFixture,
        _ random: SeededGenerator,
        _ writer: Int,
        _ ledger: Ledger
    ) async throws {
        var random = random
        let connection = try await DaemonFixture.connect(fixture.conninfo)
        let name = try await fixture.texts("SELECT current_database()")[0] + "_\(writer)"
        var first = 1
        while !ledger.isComplete, !Task.isCancelled {
            var choice = SeededGenerator(seed: random.next())
            func number(_ index: Int) -> Int { (first + index) * Self.writers + writer }
            let transaction = RandomTransaction(using: &random, prepared: name) { index in
                // The transaction that stays open has the first person.
                let own = Int.random(in: 1..<Self.people / Self.writers, using: &choice)
                return Self.change(number(index), person: own * Self.writers + writer)
            }
            try await connection.withSession { session throws(PostgresError) in
                for statement in transaction.statements { try session.execute(script: statement) }
            }
            ledger.add(transaction.kept.map { "\(number($0))" })
            first += transaction.count
        }
        await connection.close()
    }

    /// The number of the change is in its event as the notification that caused it.
    private static func change(_ number: Int, person: Int) -> String {
        """
        INSERT INTO siwa.account_changes (account_id, app_id, facet, from_state, to_state, event_time, jti)
        SELECT account_id, 'com.example.one', 'consent', 'authorized', 'revoked', now(), '\(number)'
        FROM siwa.accounts WHERE sub = 'p\(person)'
        """
    }

    // MARK: - Faults

    /// Ends publishers at a random point of their work.
    private func killPublishers(_ fixture: DaemonFixture, until ledger: Ledger) async throws {
        let connection = try await DaemonFixture.connect(fixture.conninfo)
        while !ledger.isDone.load(ordering: .relaxed), !Task.isCancelled {
            let killed = try await connection.withSession { session throws(PostgresError) in
                try session.execute(script: "SELECT pg_sleep(random() * 0.02)")
                return try session.execute(
                    once: """
                        SELECT count(*) FILTER (WHERE pg_terminate_backend(pid)) FROM pg_stat_activity
                        WHERE datname = current_database() AND query LIKE '%FROM siwa.publish_changes()%'
                            AND state = 'active' AND pid <> pg_backend_pid()
                        """
                ).int64(0, 0)
            }
            ledger.publishersKilled.wrappingAdd(Int(killed), ordering: .relaxed)
        }
        await connection.close()
    }

    /// A daemon whose connection is ended while it starts ends with 69, and is started again, as by a supervisor.
    private func startDaemon(_ fixture: DaemonFixture) async throws -> DaemonProcess {
        while true {
            let daemon = fixture.start(try DaemonFixture.delivering())
            do {
                _ = try await daemon.ready()
                return daemon
            } catch {
                guard daemon.status == 69 else { throw error }
            }
        }
    }

    /// Has two daemons deliver, of which one after the other is killed and replaced, and returns how many were killed. The
    /// first round on a connection takes the longest, so the more daemons start, the more publishers are killed.
    private func killDaemons(
        _ fixture: DaemonFixture,
        _ ledger: Ledger,
        receivers: [PythonReceiver]
    ) async throws -> Int {
        func received() -> Int { receivers.map(\.count).reduce(0, +) }
        var daemons = [try await startDaemon(fixture), try await startDaemon(fixture)]
        var killed = 0
        while killed < Self.kills - 1 || !ledger.hasEnoughKills {
            let goal = received() + Self.changes / Self.kills / 2
            do {
                try await eventually("progress", within: .seconds(120)) { received() >= goal }
            } catch let error as TooLate {
                throw TooLate("\(error); \(received()) of \(goal) arrived; \(try await state(fixture, daemons))")
            }
            await daemons.removeFirst().kill()
            killed += 1
            daemons.append(try await startDaemon(fixture))
        }
        for daemon in daemons { await daemon.kill() }
        try await fixture.expireClaims()
        return killed + daemons.count
    }

    /// What the deliveries wait for.
    private func state(_ fixture: DaemonFixture, _ daemons: [DaemonProcess]) async throws -> String {
        let counts = try await fixture.texts(
            """
            SELECT 'position ' || position FROM siwa.publication
            UNION ALL SELECT 'changes ' || count(*) FROM siwa.account_changes
            UNION ALL SELECT concat_ws(' ', name, status, status_reason) FROM siwa.endpoints
            UNION ALL
            SELECT concat_ws(' ', status, attempts, claim IS NOT NULL, count(*), min(claimed_until - now()))
            FROM siwa.deliveries GROUP BY status, attempts, claim IS NOT NULL
            UNION ALL SELECT concat_ws(' ', state, wait_event, left(query, 60)) FROM pg_stat_activity
            WHERE datname = current_database()
            """
        )
        return (counts + daemons.flatMap { $0.log.suffix(5) }).joined(separator: "; ")
    }
}
