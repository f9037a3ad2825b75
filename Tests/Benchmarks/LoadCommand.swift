import ArgumentParser
import FoundationEssentials

struct LoadCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "load",
        abstract: "Notifications per second, latencies, processor time and memory of siwad under several loads.",
        usage: "Benchmarks load <options>",
        discussion: """
            Each run starts from a fresh copy of the same database, after a warm-up run and a checkpoint. Loads that are \
            compared with each other are measured in alternation.
            """
    )

    @OptionGroup var options: BenchmarkOptions

    @Option(help: "People in the database, with three sessions each.")
    var people = 1_000_000

    @Option(help: "Tokens to sign; a run uses each genuine one once.")
    var tokens = 200_000

    func run() async throws {
        try await Workbench.with(options) { bench in
            let tokens = try await Tokens.minted(tokens, people: people, in: bench.directory)
            try await bench.siwadDatabase(people: people)
            var report = Report(Report.loadColumns, options)
            let load = SiwadLoad(bench: bench, tokens: tokens, people: people, options: options)
            let many = options.connections
            let kinds = try await load.typical([
                load.closed("genuine, \(many) connections", many),
                load.closed("duplicates, \(many) connections", many, .duplicates),
                load.closed("forged, \(many) connections", many, .forged),
            ])
            let most = try await load.typical([load.closed("genuine, 256 connections", 256)])
            let alone = try await load.typical([
                load.closed("genuine, 1 connection", 1),
                load.closed("1 connection, one notification per transaction", 1, settings: ["SIWAD_BATCH_LIMIT": "1"]),
            ])
            for (name, measurement) in kinds + most + alone { report.append(name, measurement) }
            let genuine = kinds[0].measurement
            for share in [0.25, 0.5, 0.75] {
                let rate = (genuine.rate * share).rounded()
                report.append("open loop, \(Int(rate)) per second", try await load.open(rate: rate))
            }
            report.print(asJSON: options.json)
        }
    }
}

extension Workbench {
    /// Creates the database with a number of people, unless it exists.
    func siwadDatabase(people: Int) async throws {
        try await database(siwadBase(people)) { name in
            Progress.note("creating a database with \(people) people")
            try await migrate(name)
            for statement in Population.fillSiwad(people) { try await run(statement, on: name) }
        }
    }

    func migrate(_ database: String) async throws {
        _ = try await output(of: siwad, ["migrate"], environment: ["SIWAD_DATABASE_URL": conninfo(database)])
    }
}

/// Loads of one siwad.
struct SiwadLoad {
    let bench: Workbench
    let tokens: Tokens
    let people: Int
    let options: BenchmarkOptions

    /// A closed loop with `connections`.
    func closed(
        _ name: String,
        _ connections: Int,
        _ requests: LoadCase.Requests = .genuine,
        settings: [String: String] = [:]
    ) -> LoadCase {
        LoadCase(
            name: name,
            service: .siwad(bench, tokens: tokens, settings: settings),
            base: bench.siwadBase(people),
            bodies: requests == .forged ? tokens.forged : tokens.genuine,
            connections: connections,
            requests: requests
        )
    }

    /// The median of several rounds for each case.
    func typical(_ cases: [LoadCase]) async throws -> [(name: String, measurement: Measurement)] {
        let rounds = try await bench.rounds(options.rounds, of: cases, seconds: options.seconds)
        return cases.indices.map { index in (cases[index].name, .typical(rounds.map { $0[index] })) }
    }

    /// Notifications at fixed times, independent of the responses.
    func open(rate: Double) async throws -> Measurement {
        Progress.note("open loop, \(Int(rate)) per second")
        let service = Service.siwad(bench, tokens: tokens)
        try await bench.copy(bench.siwadBase(people), to: service.database)
        return try await service.running { figures in
            try await bench.run("CHECKPOINT")
            return try await Measurement.of(figures, bench.server) {
                try await OpenLoop(connections: options.connections, rate: rate, seconds: options.seconds)
                    .post(tokens.genuine, to: service.url)
            }.checked(.genuine, by: service.name)
        }
    }
}
