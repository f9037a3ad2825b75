import ArgumentParser
import FoundationEssentials

/// One siwad under every kind of load.
struct LoadCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "load",
        abstract: "Notifications a second, latencies, processor time and memory of siwad under load.",
        discussion: "Each run begins from a fresh copy of the same database."
    )

    @OptionGroup var options: BenchmarkOptions

    @Option(help: "People in the database, with three sessions each.")
    var people = 1_000_000

    @Option(help: "Tokens to sign; a closed loop uses each once.")
    var tokens = 120_000

    func run() async throws {
        try await Workbench.with(options) { bench in
            let tokens = try await Tokens.minted(tokens, people: people, in: bench.directory)
            try await bench.siwadDatabase(people: people)
            var report = Report(Report.loadColumns)
            let load = SiwadLoad(bench: bench, tokens: tokens, people: people, options: options)
            let genuine = try await load.typical(connections: options.connections)
            report.append("genuine, \(options.connections) connections", genuine)
            report.append("genuine, 256 connections", try await load.typical(connections: 256))
            report.append("genuine, 1 connection", try await load.typical(connections: 1))
            report.append(
                "the same, a transaction each",
                try await load.typical(connections: 1, settings: ["SIWAD_BATCH_LIMIT": "1"])
            )
            report.append("duplicates, \(options.connections) connections", try await load.duplicates())
            report.append("forged, \(options.connections) connections", try await load.forged())
            for share in [0.25, 0.5, 0.75] {
                let rate = (genuine.rate * share).rounded()
                report.append("open loop, \(Int(rate)) a second", try await load.open(rate: rate))
            }
            report.print(asJSON: options.json)
        }
    }
}

extension Workbench {
    /// Makes the database of a number of people, the first time.
    func siwadDatabase(people: Int) async throws {
        try await database(siwadBase(people)) { name in
            Progress.note("making a database of \(people) people")
            try await migrate(name)
            for statement in Population.fillSiwad(people) { try await run(statement, on: name) }
        }
    }

    func migrate(_ database: String) async throws {
        _ = try await output(of: siwad, ["migrate"], environment: ["SIWAD_DATABASE_URL": conninfo(database)])
    }
}

/// Loads of one siwad, each on a fresh copy of the database.
struct SiwadLoad {
    let bench: Workbench
    let tokens: Tokens
    let people: Int
    let options: BenchmarkOptions

    /// The median of several runs of a closed loop.
    func typical(connections: Int, settings: [String: String] = [:]) async throws -> Measurement {
        var runs: [Measurement] = []
        for round in 1...options.rounds {
            Progress.note("\(connections) connections, round \(round) of \(options.rounds)")
            runs.append(
                try await fresh(settings) { service, url in
                    try await genuine(service, url, connections: connections)
                }
            )
        }
        return .typical(runs)
    }

    /// Notifications that are all there already.
    func duplicates() async throws -> Measurement {
        Progress.note("duplicates")
        return try await fresh { service, url in
            let first = try await genuine(service, url, connections: options.connections)
            // Only so many again that none of them is a first time.
            let seconds = max(1, options.seconds / 3)
            let again = try await Measurement.of(service, bench.server) {
                try await ClosedLoop(connections: options.connections, seconds: seconds).post(tokens.genuine, to: url)
            }.accepted(by: "siwad")
            guard again.rate * Double(seconds) <= first.rate * Double(options.seconds) else {
                throw BenchmarkError("the duplicates were answered faster than there were any: raise --seconds")
            }
            return again
        }
    }

    /// Notifications whose signature is wrong.
    func forged() async throws -> Measurement {
        Progress.note("forged")
        return try await fresh { service, url in
            let result = try await Measurement.of(service, bench.server) {
                try await ClosedLoop(connections: options.connections, seconds: max(1, options.seconds / 2))
                    .post(tokens.forged, to: url)
            }
            guard result.refusals > 0 else { throw BenchmarkError("forged notifications were accepted") }
            return result
        }
    }

    /// Notifications at times that don't depend on the answers.
    func open(rate: Double) async throws -> Measurement {
        Progress.note("open loop, \(Int(rate)) a second")
        return try await fresh { service, url in
            try await Measurement.of(service, bench.server) {
                try await OpenLoop(connections: options.connections, rate: rate, seconds: options.seconds)
                    .post(tokens.genuine, to: url)
            }.accepted(by: "siwad")
        }
    }

    private func genuine(_ service: ProcessFigures, _ url: String, connections: Int) async throws -> Measurement {
        try await Measurement.of(service, bench.server) {
            try await ClosedLoop(connections: connections, seconds: options.seconds).post(tokens.genuine, to: url)
        }.accepted(by: "siwad")
    }

    private func fresh(
        _ settings: [String: String] = [:],
        _ body: @Sendable @escaping (ProcessFigures, _ url: String) async throws -> Measurement
    ) async throws -> Measurement {
        try await bench.copy(of: bench.siwadBase(people))
        let service = Service.siwad(bench, database: "run", tokens: tokens, settings: settings)
        return try await service.running { figures in try await body(figures, service.url) }
    }
}
