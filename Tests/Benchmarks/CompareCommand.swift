import ArgumentParser

/// siwad and the peers, second by second in turn.
struct CompareCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "compare",
        abstract: "The same load on siwad, a tuned Python service and a Go service, each at its best setting.",
        usage: "Benchmarks compare <options>",
        discussion: """
            Needs python3 with venv, and Debian's golang-go, golang-github-golang-jwt-jwt-dev and \
            golang-github-jackc-pgx-v4-dev. The peers' best settings are found by short runs first. Absolute figures belong to \
            the machine; the ratios are of rounds made side by side.
            """
    )

    @OptionGroup var options: BenchmarkOptions

    @Option(help: "People in each database, with three sessions each.")
    var people = 1_000_000

    @Option(help: "Tokens to sign; a closed loop uses each once.")
    var tokens = 160_000

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
                        Service.python(bench, tokens: tokens, workers: workers, pool: pool)
                    )
                }
            )
            let go = try await contest.best(
                of: [4, 8, 16, 32, 64].map {
                    ("Go, \($0) connections", Service.go(bench, tokens: tokens, pool: $0))
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
    typealias Candidate = (name: String, service: Service)

    let bench: Workbench
    let tokens: Tokens
    let people: Int
    let options: BenchmarkOptions

    /// The candidate with the most notifications a second in a short run.
    func best(of candidates: [Candidate]) async throws -> Entrant {
        var best: (entrant: Entrant, rate: Double)?
        for candidate in candidates {
            Progress.note("\(candidate.name)")
            let entrant = entrant(candidate, from: Workbench.peerBase(people))
            guard let run = try await bench.sideBySide([entrant], seconds: 2).first else { continue }
            if run.rate > best?.rate ?? 0 { best = (entrant, run.rate) }
        }
        guard let best else { throw BenchmarkError("no service answered") }
        return best.entrant
    }

    /// Rounds of all three.
    func hold(_ python: Entrant, _ go: Entrant) async throws -> Report {
        let siwad = entrant(("siwad", Service.siwad(bench, tokens: tokens)), from: bench.siwadBase(people))
        let entrants = [siwad, python, go]
        var runs: [[Measurement]] = []
        for round in 1...options.rounds {
            Progress.note("round \(round) of \(options.rounds)")
            runs.append(try await bench.sideBySide(entrants, seconds: options.seconds))
        }
        var report = Report(Report.loadColumns + ["siwad is faster by", "at least", "at most"])
        for (index, entrant) in entrants.enumerated() {
            let own = runs.map { $0[index] }
            report.append(entrant.name, .typical(own), runs.map { $0[0] }.ratios(to: own).spread)
        }
        return report
    }

    private func entrant(_ candidate: Candidate, from base: String) -> Entrant {
        Entrant(
            name: candidate.name,
            service: candidate.service,
            base: base,
            bodies: tokens.genuine,
            connections: options.connections
        )
    }
}
