import ArgumentParser

struct CompareCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "compare",
        abstract: "Compares siwad with a tuned Python service and a Go service under the same load.",
        usage: "Benchmarks compare <options>",
        discussion: """
            Needs python3 with venv, and Debian's golang-go, golang-github-golang-jwt-jwt-dev and \
            golang-github-jackc-pgx-v4-dev. Short runs find the best setting of each service first. The services are measured \
            in alternation, each run on a fresh copy of its database, after a warm-up run and a checkpoint. Absolute figures \
            depend on the machine; the ratios compare runs of the same round.
            """
    )

    @OptionGroup var options: BenchmarkOptions

    @Option(help: "People in each database, with three sessions each.")
    var people = 1_000_000

    @Option(help: "Tokens to sign; a run uses each once.")
    var tokens = 200_000

    func run() async throws {
        try await Workbench.with(options) { bench in
            try await Peers.prepare(in: bench.directory)
            let tokens = try await Tokens.minted(tokens, people: people, in: bench.directory)
            try await bench.siwadDatabase(people: people)
            try await bench.peerDatabase(people: people)
            let comparison = Comparison(bench: bench, tokens: tokens, people: people, options: options)
            let python = try await comparison.best(
                of: [(1, 8), (2, 4), (2, 8), (2, 16)].map { workers, pool in
                    (
                        "Python, workers: \(workers), connections each: \(pool)",
                        Service.python(bench, tokens: tokens, workers: workers, pool: pool)
                    )
                }
            )
            let go = try await comparison.best(
                of: [4, 8, 16, 32, 64].map {
                    ("Go, \($0) connections", Service.go(bench, tokens: tokens, pool: $0))
                }
            )
            try await comparison.report(python, go).print(asJSON: options.json)
        }
    }
}

extension Workbench {
    static func peerBase(_ people: Int) -> String { "peer_\(people)" }

    func peerDatabase(people: Int) async throws {
        try await database(Self.peerBase(people)) { name in
            Progress.note("creating the database of the Python and Go services with \(people) people")
            _ = try await output(
                of: "psql",
                ["-q", "-v", "ON_ERROR_STOP=1", "-f", "\(Peers.sources)/python/schema.sql", uri(name)]
            )
            for statement in Population.fillPeer(people) { try await run(statement, on: name) }
        }
    }
}

/// Runs of siwad and the peers under the same load.
struct Comparison {
    let bench: Workbench
    let tokens: Tokens
    let people: Int
    let options: BenchmarkOptions

    /// The peer setting with the most notifications per second in a short run.
    func best(of settings: [(name: String, service: Service)]) async throws -> LoadCase {
        var best: (load: LoadCase, rate: Double)?
        for (name, service) in settings {
            let load = loadCase(name, service, base: Workbench.peerBase(people))
            let rate = try await bench.measure(load, seconds: 2).rate
            Progress.note("\(name): \(Report.rounded(rate, 0)) per second")
            if rate > best?.rate ?? 0 { best = (load, rate) }
        }
        guard let best else { throw BenchmarkError("none of the services responded") }
        return best.load
    }

    /// Measures siwad and both peers in alternation.
    func report(_ python: LoadCase, _ go: LoadCase) async throws -> Report {
        let siwad = loadCase("siwad", .siwad(bench, tokens: tokens), base: bench.siwadBase(people))
        let cases = [siwad, python, go]
        let rounds = try await bench.rounds(options.rounds, of: cases, seconds: options.seconds)
        var report = Report(Report.loadColumns + ["siwad is faster by", "at least", "at most"], options)
        for (index, load) in cases.enumerated() {
            let own = rounds.map { $0[index] }
            report.append(load.name, .typical(own), rounds.map { $0[0] }.ratios(to: own).spread)
        }
        return report
    }

    private func loadCase(_ name: String, _ service: Service, base: String) -> LoadCase {
        LoadCase(
            name: name,
            service: service,
            base: base,
            bodies: tokens.genuine,
            connections: options.connections
        )
    }
}
