import ArgumentParser
import FoundationEssentials

/// One siwad under every kind of load.
struct LoadCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "load",
        abstract: "Notifications a second, latencies, processor time and memory of siwad under load.",
        usage: "Benchmarks load <options>",
        discussion: """
            Each run begins from a fresh copy of the same database. Duplicates and forged tokens are measured beside genuine \
            ones, and groups beside a transaction each: a second each in turn.
            """
    )

    @OptionGroup var options: BenchmarkOptions

    @Option(help: "People in the database, with three sessions each.")
    var people = 1_000_000

    @Option(help: "Tokens to sign; a closed loop uses each genuine one once.")
    var tokens = 160_000

    func run() async throws {
        try await Workbench.with(options) { bench in
            let tokens = try await Tokens.minted(tokens, people: people, in: bench.directory)
            try await bench.siwadDatabase(people: people)
            var report = Report(Report.loadColumns)
            let load = SiwadLoad(bench: bench, tokens: tokens, people: people, options: options)
            let many = options.connections
            let kinds = try await load.typical([
                .init("genuine, \(many) connections", connections: many),
                .init("duplicates, \(many) connections", connections: many, requests: .duplicates),
                .init("forged, \(many) connections", connections: many, requests: .forged),
            ])
            let most = try await load.typical([.init("genuine, 256 connections", connections: 256)])
            let alone = try await load.typical([
                .init("genuine, 1 connection", connections: 1),
                .init("the same, a transaction each", connections: 1, settings: ["SIWAD_BATCH_LIMIT": "1"]),
            ])
            for (name, measurement) in kinds + most + alone { report.append(name, measurement) }
            let genuine = kinds[0].measurement
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

    /// A closed loop.
    struct Kind {
        let name: String
        let connections: Int
        let requests: Entrant.Requests
        let settings: [String: String]

        init(
            _ name: String,
            connections: Int,
            requests: Entrant.Requests = .genuine,
            settings: [String: String] = [:]
        ) {
            self.name = name
            self.connections = connections
            self.requests = requests
            self.settings = settings
        }
    }

    /// Closed loops side by side, of each the median of several rounds.
    func typical(_ kinds: [Kind]) async throws -> [(name: String, measurement: Measurement)] {
        let entrants = kinds.enumerated().map { place, kind in
            Entrant(
                name: kind.name,
                service: .siwad(bench, place: place, tokens: tokens, settings: kind.settings),
                base: bench.siwadBase(people),
                bodies: kind.requests == .forged ? tokens.forged : tokens.genuine,
                connections: kind.connections,
                requests: kind.requests
            )
        }
        var runs: [[Measurement]] = []
        for round in 1...options.rounds {
            let names = kinds.map(\.name).joined(separator: "; ")
            Progress.note("round \(round) of \(options.rounds): \(names)")
            runs.append(try await bench.sideBySide(entrants, seconds: options.seconds))
        }
        return kinds.indices.map { index in (kinds[index].name, .typical(runs.map { $0[index] })) }
    }

    /// Notifications at times that don't depend on the answers.
    func open(rate: Double) async throws -> Measurement {
        Progress.note("open loop, \(Int(rate)) a second")
        let service = Service.siwad(bench, tokens: tokens)
        try await bench.copy([(bench.siwadBase(people), service.database)])
        return try await service.running { figures in
            try await Measurement.of(figures, bench.server) {
                try await OpenLoop(connections: options.connections, rate: rate, seconds: options.seconds)
                    .post(tokens.genuine, to: service.url)
            }.answered(as: .genuine, by: service.name)
        }
    }
}
