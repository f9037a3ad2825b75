import AccountStore
import AppleTokens
import AppleSimulator
import ArgumentParser
import Basics
import FoundationEssentials
import JOSE
import Postgres

struct MicroCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "micro",
        abstract: "Measures verification, JSON and the ingest statement by batch size, each separately.",
        usage: "Benchmarks micro <options>"
    )

    @OptionGroup var options: BenchmarkOptions

    @Option(help: "People in the database of the ingest statement.")
    var people = 1_000_000

    func run() async throws {
        var report = Report(["part", "µs each", "per second on one core"], options)
        func append(_ name: String, _ microseconds: Double) {
            report.append([.text(name), .number(microseconds, decimals: 2), .number(1e6 / microseconds, decimals: 0)])
        }
        for (name, microseconds) in try Self.parts() { append(name, microseconds) }
        try await Workbench.with(options) { bench in
            try await bench.siwadDatabase(people: people)
            for size in [1, 16, 64, 256] {
                let cost = try await ingest(bench, size)
                append("ingest, batches of \(size): elapsed", cost.wall)
                append("ingest, batches of \(size): processor time of PostgreSQL", cost.server)
            }
        }
        report.print(asJSON: options.json)
    }

    private static func parts() throws -> [(String, Double)] {
        let apple = try SimulatedApple.generate()
        let now = WallTime.now()
        let event = SimulatedEvent(
            type: "email-disabled",
            sub: Population.subject(4_711),
            app: Population.app,
            email: "u4711@privaterelay.appleid.com",
            isPrivateEmail: true,
            eventTime: now.wholeMilliseconds,
            issuedAt: now.wholeSeconds
        )
        let token = Array(try apple.token(for: event).utf8)
        let body = Array(SimulatedApple.body(token: String(decoding: token, as: UTF8.self)).utf8)
        let claims = Array(event.claims(issuer: apple.issuer).utf8)
        let keys = KeySet(apple.keys, fetchedAt: now)
        let audiences = try AudienceMap(parsing: "\(Population.team)/\(Population.app)")
        let verifier = NotificationVerifier(policy: NotificationPolicy(audiences: audiences))
        let parsed = try CompactJWS(parsing: token)
        guard case .verified = verifier.verify(token: token, keys: keys, now: now) else {
            throw BenchmarkError("a genuine token was not verified")
        }
        let key = try RSAVerifier(apple.key.publicKey)
        return [
            ("body: find the token", try microseconds { try NotificationBody.token(in: body).count }),
            ("token: base64url and header", try microseconds { try CompactJWS(parsing: token).payload.count }),
            ("token: RSA signature", try microseconds { key.isValid(parsed) ? 1 : 0 }),
            ("claims: JSON tree", try microseconds { try JSONValue(parsing: claims) == .null ? 0 : 1 }),
            (
                "token: all checks",
                try microseconds {
                    if case .verified = verifier.verify(token: token, keys: keys, now: now) { 1 } else { 0 }
                }
            ),
        ]
    }

    /// The median of seven intervals of 0.2 seconds.
    private static func microseconds(_ body: () throws -> Int) throws -> Double {
        let clock = ContinuousClock()
        var results: [Double] = []
        var sum = 0
        for _ in 0..<7 {
            let start = clock.now
            var count = 0
            while clock.now - start < .milliseconds(200) {
                for _ in 0..<100 { sum &+= try body() }
                count += 100
            }
            results.append((clock.now - start) / .microseconds(1) / Double(count))
        }
        // Uses the results, so that the compiler cannot remove the work.
        guard sum > 0 else { throw BenchmarkError("a part of the measurement failed") }
        return results.median
    }

    private func ingest(_ bench: Workbench, _ size: Int) async throws -> (wall: Double, server: Double) {
        Progress.note("ingest in batches of \(size)")
        try await bench.copy(bench.siwadBase(people), to: "run")
        let settings = try ConnectionSettings(conninfo: bench.conninfo("run"), applicationName: "benchmarks")
        let connection = try await PostgresConnection.connect(settings)
        let batches = batches(of: size, total: 20_000)
        let clock = ContinuousClock()
        let server = bench.server
        try await connection.withSession(deadline: .seconds(600)) { session throws(PostgresError) in
            try session.execute(script: Notifications.writerSettings)
            try Notifications.ensurePartitions(from: .now(), through: .now(), in: session)
            for batch in batches.prefix(10) { _ = try Notifications.record(batch, source: .endpoint, in: session) }
        }
        let (before, start) = (server.processorMicroseconds, clock.now)
        try await connection.withSession(deadline: .seconds(600)) { session throws(PostgresError) in
            for batch in batches.dropFirst(10) { _ = try Notifications.record(batch, source: .endpoint, in: session) }
        }
        let count = Double((batches.count - 10) * size)
        let cost = ((clock.now - start) / .microseconds(1) / count, (server.processorMicroseconds - before) / count)
        await connection.close()
        return cost
    }

    private func batches(of size: Int, total: Int) -> [[ReceivedNotification]] {
        var random = SplitMix(seed: UInt64(size))
        let now = WallTime.now()
        let token = [UInt8](repeating: UInt8(ascii: "x"), count: 950)
        return (0..<max(40, total / size)).map { _ in
            (0..<size).map { _ in
                let person = Int(random.next() % UInt64(people))
                let kind: AccountEvent.Kind =
                    switch random.next() % 10 {
                    case 0..<3: .emailDisabled
                    case 3..<6: .emailEnabled
                    case 6..<9: .consentRevoked
                    default: .accountDeleted
                    }
                let event = AccountEvent(
                    kind: kind,
                    rawType: kind.rawValue,
                    subject: Subject(Population.subject(person)),
                    time: now - .milliseconds(Int64(random.next() % 1_000)),
                    email: kind.isAboutEmail ? "u\(person)@privaterelay.appleid.com" : nil,
                    emailIsPrivate: kind.isAboutEmail ? true : nil
                )
                return ReceivedNotification(
                    VerifiedNotification(
                        id: NotificationID(SimulatedEvent.randomID()),
                        issuedAt: now,
                        expiresAt: now + .seconds(86_400),
                        team: TeamID(Population.team),
                        app: AppID(Population.app),
                        audience: Population.app,
                        event: event,
                        keyID: "benchmark",
                        token: token
                    ),
                    receivedAt: now
                )
            }
        }
    }
}
