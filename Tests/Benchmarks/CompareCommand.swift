import ArgumentParser

/// siwad and the peers, one after another in each round.
struct CompareCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "compare",
        abstract: "The same load on siwad, a tuned Python service and a Go service, each at its best setting.",
        discussion: """
            Needs python3 with venv, and Debian's golang-go, golang-github-golang-jwt-jwt-dev and
            golang-github-jackc-pgx-v4-dev. The peers' best settings are found by short runs first. Absolute figures belong to
            the machine; the ratios are of rounds made side by side.
            """
    )

    @OptionGroup var options: BenchmarkOptions

    @Option(help: "People in each database, with three sessions each.")
    var people = 1_000_000

    @Option(help: "Tokens to sign; a closed loop uses each once.")
    var tokens = 120_000

    func run() async throws {
        try await Workbench.with(options) { bench in
            try await Peers.prepare(in: bench.directory)
            let tokens = try await Tokens.minted(tokens, people: people, in: bench.directory)
            try await bench.siwadDatabase(people: people)
            try await bench.peerDatabase(people: people)
            let contest = Contest(bench: bench, tokens: tokens, people: people, options: options)
            let python = try await contest.best(
                of: [(1, 8), (2, 4), (2, 8), (2, 16)].map { workers, pool in
                    (
                        "Python, \(workers) workers, \(pool) connections each",
                        Service.python(bench, database: "run", tokens: tokens, workers: workers, pool: pool)
                    )
                }
            )
            let go = try await contest.best(
                of: [4, 8, 16, 32, 64].map {
                    ("Go, \($0) connections", Service.go(bench, database: "run", tokens: tokens, pool: $0))
                }
            )
            try await contest.hold(python, go).print(asJSON: options.json)
        }
    }
}

extension Workbench {
    static func peerBase(_ people: Int) -> String { "peer_\(people)" }

    func peerDatabase(people: Int) async throws {
        try await database(Self.peerBase(people)) { name in
            Progress.note("making the peers' database of \(people) people")
            _ = try await output(
                of: "psql",
                ["-q", "-v", "ON_ERROR_STOP=1", "-f", "\(Peers.sources)/python/schema.sql", uri(name)]
            )
            for statement in Population.fillPeer(people) { try await run(statement, on: name) }
        }
    }
}

/// Runs on equal terms.
struct Contest {
    typealias Entry = (name: String, service: Service)

    let bench: Workbench
    let tokens: Tokens
    let people: Int
    let options: BenchmarkOptions

    /// The entry with the most notifications a second in a short run.
    func best(of entries: [Entry]) async throws -> Entry {
        var best: (entry: Entry, rate: Double)?
        for entry in entries {
            Progress.note("\(entry.name)")
            let rate = try await run(entry, from: Workbench.peerBase(people), seconds: 2).rate
            if rate > best?.rate ?? 0 { best = (entry, rate) }
        }
        guard let best else { throw BenchmarkError("no service answered") }
        return best.entry
    }

    /// Rounds of all three, side by side.
    func hold(_ python: Entry, _ go: Entry) async throws -> Report {
        let siwad: Entry = ("siwad", Service.siwad(bench, database: "run", tokens: tokens))
        let entries = [(siwad, bench.siwadBase(people))] + [python, go].map { ($0, Workbench.peerBase(people)) }
        var runs: [[Measurement]] = Array(repeating: [], count: entries.count)
        for round in 1...options.rounds {
            for (index, (entry, base)) in entries.enumerated() {
                Progress.note("round \(round) of \(options.rounds): \(entry.name)")
                runs[index].append(try await run(entry, from: base, seconds: options.seconds))
            }
        }
        var report = Report(Report.loadColumns + ["siwad is faster by", "at least", "at most"])
        for (index, (entry, _)) in entries.enumerated() {
            report.append(entry.name, .typical(runs[index]), runs[0].ratios(to: runs[index]).spread)
        }
        return report
    }

    private func run(_ entry: Entry, from base: String, seconds: Int) async throws -> Measurement {
        try await bench.copy(of: base)
        let (bench, tokens, connections) = (bench, tokens, options.connections)
        return try await entry.service.running { figures in
            try await Measurement.of(figures, bench.server) {
                try await ClosedLoop(connections: connections, seconds: seconds)
                    .post(tokens.genuine, to: entry.service.url)
            }.accepted(by: entry.name)
        }
    }
}
