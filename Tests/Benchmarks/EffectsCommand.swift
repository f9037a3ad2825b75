import AppleSimulator
import ArgumentParser
import AsyncHTTPClient
import Basics
import FoundationEssentials
import JOSE
import NIOCore
import NIOHTTP1

/// What the publication of changes and their deliveries cost, and how soon they arrive.
struct EffectsCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "effects",
        abstract: "Costs and delays of publication and webhooks.",
        usage: "Benchmarks effects <options>",
        discussion: """
            Both sides of a ratio are measured in each round, in alternation. The receivers run in this process and use \
            the same processors. The targets are for the median of five rounds on an idle machine.

              ingest     saturated ingest, with SIWAD_EFFECTS on compared with off, without endpoints
              open-loop  notifications at a fixed rate, with one endpoint and without
              catch-up   changes that wait for one endpoint when the daemon starts
              idle       one notification at a time
              fairness   an endpoint alone, and next to one that never answers and one that answers 503
              dead       notifications at a fixed rate, with four endpoints that never work and without
              memory     saturated ingest with four endpoints, compared with none

            Example:
              swift run -c release Benchmarks effects --rounds 5
              swift run -c release Benchmarks effects --part ingest --part idle
            """
    )

    enum Part: String, ExpressibleByArgument, CaseIterable {
        case ingest
        case openLoop = "open-loop"
        case catchUp = "catch-up"
        case idle, fairness, dead, memory
    }

    @OptionGroup var options: BenchmarkOptions

    @Option(help: "People in the database, with three sessions each.")
    var people = 1_000_000

    @Option(help: "Tokens to sign; a run uses each once.")
    var tokens = 200_000

    @Option(help: "Changes that wait in catch-up; a quarter of them in fairness.")
    var changes = 200_000

    @Option(help: "Notifications a second in the open loop.")
    var rate = 4_000

    @Option(help: "Seconds of the open loop.")
    var openSeconds = 30

    @Option(parsing: .unconditionalSingleValue, help: "Measure only this part; repeatable.")
    var part: [Part] = []

    func run() async throws {
        try await Workbench.with(options) { bench in
            let tokens = try await Tokens.minted(tokens, people: people, in: bench.directory)
            try await bench.siwadDatabase(people: people)
            let effects = EffectsBench(
                bench: bench,
                load: SiwadLoad(bench: bench, tokens: tokens, people: people, options: options),
                sealingKeys: try SealingKeys.newLine(name: "benchmark"),
                command: self
            )
            var report = Report(Report.figureColumns, options)
            for part in part.isEmpty ? Part.allCases : part {
                for figure in try await effects.figures(of: part) { report.append(figure) }
            }
            report.print(asJSON: options.json)
        }
    }
}

private struct EffectsBench {
    private static let port = 18_095

    let bench: Workbench
    let load: SiwadLoad
    let sealingKeys: String
    let command: EffectsCommand

    private var rounds: Int { command.options.rounds }

    func figures(of part: EffectsCommand.Part) async throws -> [[Report.Value]] {
        switch part {
        case .ingest: try await ingest()
        case .openLoop: try await openLoop()
        case .catchUp: try await catchUp()
        case .idle: try await idle()
        case .fairness: try await fairness()
        case .dead: try await dead()
        case .memory: try await memory()
        }
    }

    private func service(_ settings: [String: String] = [:]) -> Service {
        let usual = ["SIWAD_SEALING_KEYS": sealingKeys, "SIWAD_DELIVERY_ALLOW": "127.0.0.0/8"]
        return .siwad(bench, tokens: load.tokens, settings: usual.merging(settings) { $1 })
    }

    // MARK: - The parts

    private func ingest() async throws -> [[Report.Value]] {
        let connections = command.options.connections
        let cases = ["on", "off"].map { load.closed("effects \($0)", connections, settings: ["SIWAD_EFFECTS": $0]) }
        let runs = try await bench.rounds(rounds, of: cases, seconds: command.options.seconds)
        return [
            Report.figure("ingest: rate, on : off", runs.map { $0[0].rate / $0[1].rate }, "≥ 0.92"),
            Report.figure(
                "ingest: PostgreSQL µs more for a notification",
                runs.map { $0[0].serverMicroseconds - $0[1].serverMicroseconds },
                "≤ 6"
            ),
        ]
    }

    private func openLoop() async throws -> [[Report.Value]] {
        var (behind, medians, slow, ratios): ([Double], [Double], [Double], [Double]) = ([], [], [], [])
        for round in 1...rounds {
            Progress.note("open loop, round \(round) of \(rounds)")
            var p99 = [0: 0.0, 1: 0.0]
            for count in round.isMultiple(of: 2) ? [1, 0] : [0, 1] {
                try await withEndpoints(Array(repeating: .accepts, count: count)) { receivers in
                    p99[count] = try await notificationsAtFixedRate().p99
                    guard let receiver = receivers.first else { return }
                    behind.append(Double(try await self.count("position", of: "siwa.publication") - receiver.count))
                    medians.append(receiver.delays.median)
                    slow.append(receiver.delays.p99)
                }
            }
            ratios.append((p99[1] ?? 0) / (p99[0] ?? 1))
        }
        return [
            Report.figure("open loop: events behind at the end", behind, "≤ 2000"),
            Report.figure("open loop: ms from recorded to received, p50", medians, "≤ 60"),
            Report.figure("open loop: ms from recorded to received, p99", slow, "≤ 400"),
            Report.figure("open loop: p99 of the responses to Apple, with : without", ratios, "≤ 1.5"),
        ]
    }

    private func notificationsAtFixedRate() async throws -> Measurement {
        try await service().running { figures in
            try await Measurement.of(figures, bench.server) {
                try await OpenLoop(
                    connections: command.options.connections,
                    rate: Double(command.rate),
                    seconds: command.openSeconds
                ).post(load.tokens.genuine, to: service().url)
            }.checked(.genuine, by: "siwad")
        }
    }

    private func dead() async throws -> [[Report.Value]] {
        let behaviours: [DeliveryReceiver.Behaviour] = [.neverAnswers, .neverAnswers, .answers503, .answers503]
        var (with, without): ([Double], [Double]) = ([], [])
        for round in 1...rounds {
            Progress.note("dead endpoints, round \(round) of \(rounds)")
            for hasEndpoints in round.isMultiple(of: 2) ? [true, false] : [false, true] {
                try await withEndpoints(hasEndpoints ? behaviours : []) { _ in
                    let p99 = try await notificationsAtFixedRate().p99
                    if hasEndpoints { with.append(p99) } else { without.append(p99) }
                }
            }
        }
        return [
            Report.figure("dead endpoints: ms, p99 of the responses to Apple", with, ""),
            Report.figure("dead endpoints: ms, p99 without them", without, ""),
            Report.figure("dead endpoints: p99, with : without", zip(with, without).map { $0 / $1 }, "≤ 1.5"),
        ]
    }

    private func catchUp() async throws -> [[Report.Value]] {
        var (rates, service, server): ([Double], [Double], [Double]) = ([], [], [])
        for round in 1...rounds {
            Progress.note("catch-up, round \(round) of \(rounds)")
            let costs = try await caughtUp(command.changes, [.accepts], ["--concurrency", "16"])
            rates.append(costs.rate)
            service.append(costs.service)
            server.append(costs.server)
        }
        return [
            Report.figure("catch-up: deliveries a second", rates, "≥ 4000"),
            Report.figure("catch-up: siwad µs for a delivery", service, "≤ 110"),
            Report.figure("catch-up: PostgreSQL µs for a delivery", server, "≤ 40"),
        ]
    }

    private func idle() async throws -> [[Report.Value]] {
        var (medians, slow): ([Double], [Double]) = ([], [])
        let apple = try await Tokens.signer(in: bench.directory, keySet: load.tokens.keySet)
        for round in 1...rounds {
            Progress.note("idle, round \(round) of \(rounds)")
            try await withEndpoints([.accepts]) { receivers in
                let receiver = receivers[0]
                let delays = try await service().running { _ in
                    var delays: [Double] = []
                    for person in 0..<200 {
                        // Between two rounds of publication, the daemon pauses for 50 ms.
                        try await Task.sleep(for: .milliseconds(100))
                        delays.append(try await revoke(person, apple, receiver))
                    }
                    return delays.sorted()
                }
                medians.append(delays[delays.count / 2])
                slow.append(delays[delays.count * 99 / 100])
            }
        }
        return [
            Report.figure("idle: ms from the 200 to the receiver, p50", medians, "≤ 10"),
            Report.figure("idle: ms from the 200 to the receiver, p99", slow, "≤ 50"),
        ]
    }

    private func fairness() async throws -> [[Report.Value]] {
        var ratios: [Double] = []
        for round in 1...rounds {
            Progress.note("fairness, round \(round) of \(rounds)")
            var rates: [Int: Double] = [:]
            for count in round.isMultiple(of: 2) ? [3, 1] : [1, 3] {
                let behaviours: [DeliveryReceiver.Behaviour] = [.accepts, .neverAnswers, .answers503]
                rates[count] = try await caughtUp(command.changes / 4, Array(behaviours.prefix(count))).rate
            }
            ratios.append((rates[3] ?? 0) / (rates[1] ?? 1))
        }
        return [Report.figure("fairness: rate next to two bad endpoints : alone", ratios, "≥ 0.95")]
    }

    private func memory() async throws -> [[Report.Value]] {
        var more: [Double] = []
        for round in 1...rounds {
            Progress.note("memory, round \(round) of \(rounds)")
            var resident: [Int: Double] = [:]
            for count in round.isMultiple(of: 2) ? [4, 0] : [0, 4] {
                try await withEndpoints(Array(repeating: .accepts, count: count)) { _ in
                    let load = LoadCase(
                        name: "\(count) endpoints",
                        service: service(),
                        base: nil,
                        bodies: self.load.tokens.genuine,
                        connections: command.options.connections
                    )
                    resident[count] = try await bench.measure(load, seconds: command.options.seconds).resident
                }
            }
            more.append((resident[4] ?? 0) - (resident[0] ?? 0))
        }
        return [Report.figure("memory: MiB more with four endpoints", more, "≤ 15")]
    }

    // MARK: - Their steps

    /// Runs `body` with a fresh database that has endpoints, and their receivers.
    private func withEndpoints(
        _ behaviours: [DeliveryReceiver.Behaviour],
        _ arguments: [String] = [],
        _ body: ([DeliveryReceiver]) async throws -> Void
    ) async throws {
        try await bench.copy(bench.siwadBase(command.people), to: service().database)
        try await withReceivers(behaviours[...]) { receivers in
            for (number, receiver) in receivers.enumerated() {
                _ = try await output(
                    of: bench.siwad,
                    ["endpoints", "add", "endpoint-\(number)", "--url", receiver.url, "--note", "benchmark"]
                        + arguments,
                    environment: service().environment
                )
            }
            try await body(receivers)
        }
    }

    private func withReceivers(
        _ behaviours: ArraySlice<DeliveryReceiver.Behaviour>,
        _ started: [DeliveryReceiver] = [],
        _ body: ([DeliveryReceiver]) async throws -> Void
    ) async throws {
        guard let next = behaviours.first else { return try await body(started) }
        try await DeliveryReceiver.with(port: Self.port + started.count, next) { receiver in
            try await withReceivers(behaviours.dropFirst(), started + [receiver], body)
        }
    }

    /// Lets changes wait for endpoints, starts the daemon, and measures the first endpoint until all have arrived there.
    private func caughtUp(
        _ changes: Int,
        _ behaviours: [DeliveryReceiver.Behaviour],
        _ arguments: [String] = []
    ) async throws -> (rate: Double, service: Double, server: Double) {
        var result = (rate: 0.0, service: 0.0, server: 0.0)
        try await withEndpoints(behaviours, arguments) { receivers in
            let database = service().database
            try await bench.run(
                """
                INSERT INTO siwa.account_changes (
                    account_id, app_id, facet, from_state, to_state, event_time, jti, sessions_ended
                )
                SELECT
                    1 + i % \(command.people), '\(Population.app)', 'consent', 'authorized', 'revoked', now(), i::text, 1
                FROM generate_series(1, \(changes)) AS i
                """,
                on: database
            )
            try await bench.run("SELECT last::text FROM siwa.publish_changes()", on: database)
            try await bench.run("VACUUM ANALYZE", on: database)
            try await bench.run("CHECKPOINT", on: database)
            let before = bench.server.processorMicroseconds
            let receiver = receivers[0]
            let used = try await service().running { figures in
                try await receiver.received(changes, within: .seconds(60 + changes / 500))
                return figures.processorMicroseconds
            }
            let server = bench.server.processorMicroseconds - before
            result = (receiver.rate, used / Double(changes), server / Double(changes))
        }
        return result
    }

    /// Posts one revocation, and returns the milliseconds from the response to the arrival of its event.
    private func revoke(
        _ person: Int,
        _ apple: SimulatedApple,
        _ receiver: DeliveryReceiver
    ) async throws -> Double {
        let now = WallTime.now()
        let event = SimulatedEvent(
            type: "consent-revoked",
            sub: Population.subject(person),
            app: Population.app,
            eventTime: now.wholeMilliseconds,
            issuedAt: now.wholeSeconds
        )
        var request = HTTPClientRequest(url: service().url)
        request.method = .POST
        request.headers.add(name: "content-type", value: "application/json")
        request.body = .bytes(ByteBuffer(string: SimulatedApple.body(token: try apple.token(for: event))))
        let response = try await HTTPClient.shared.execute(request, timeout: .seconds(10))
        let answered = ContinuousClock.now
        guard response.status == .ok else { throw BenchmarkError("siwad answered \(response.status.code)") }
        guard let arrived = await receiver.arrivals.first(where: { _ in true }) else {
            throw BenchmarkError("the receiver ended")
        }
        return (arrived - answered) / .milliseconds(1)
    }

    private func count(_ column: String, of table: String) async throws -> Int {
        let text = try await bench.run("SELECT max(\(column))::text FROM \(table)", on: service().database)
        return text.flatMap { Int($0) } ?? 0
    }
}
