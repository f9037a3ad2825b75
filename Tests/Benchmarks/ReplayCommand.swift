import ArgumentParser

struct ReplayCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "replay",
        abstract: "Dead letters per second of an operator's replay, compared with notifications at the endpoint.",
        usage: "Benchmarks replay <options>",
        discussion: "Creates the dead letters through the endpoint, for an app that is not in SIWAD_APPS at first."
    )

    @OptionGroup var options: BenchmarkOptions

    @Option(help: "People in the database, with three sessions each.")
    var people = 1_000_000

    @Option(help: "Dead letters to replay.")
    var letters = 100_000

    @Option(help: "Tokens to sign; a run uses each once.")
    var tokens = 200_000

    func run() async throws {
        try await Workbench.with(options) { bench in
            let tokens = try await Tokens.minted(max(letters, tokens), people: people, in: bench.directory)
            try await bench.siwadDatabase(people: people)
            let load = SiwadLoad(bench: bench, tokens: tokens, people: people, options: options)
            let endpoint = try await load.typical([load.closed("endpoint", options.connections)])[0].measurement
            let (count, seconds) = try await replay(bench, tokens)
            var report = Report(["source", "notifications", "per second", "share of the endpoint's rate"], options)
            report.append([
                .text("endpoint, \(options.connections) connections"),
                .number(endpoint.rate * Double(options.seconds), decimals: 0),
                .number(endpoint.rate, decimals: 0), .number(1, decimals: 2),
            ])
            report.append([
                .text("dead-letters replay"), .number(count, decimals: 0), .number(count / seconds, decimals: 0),
                .number(count / seconds / endpoint.rate, decimals: 2),
            ])
            report.print(asJSON: options.json)
        }
    }

    private func replay(_ bench: Workbench, _ tokens: Tokens) async throws -> (count: Double, seconds: Double) {
        let others = ["SIWAD_APPS": "\(Population.team)/com.example.other", "SIWAD_DEAD_LETTER_LIMIT": "10000000"]
        let service = Service.siwad(bench, tokens: tokens, settings: others)
        try await bench.copy(bench.siwadBase(people), to: service.database)
        Progress.note("creating dead letters")
        let (connections, letters) = (options.connections, letters)
        try await service.running { _ in
            let rate = 2_000.0
            _ = try await OpenLoop(connections: connections, rate: rate, seconds: max(1, Int(Double(letters) / rate)))
                .post(tokens.genuine, to: service.url)
        }
        try await bench.run("CHECKPOINT")
        Progress.note("replaying")
        let clock = ContinuousClock()
        let start = clock.now
        _ = try await output(
            of: bench.siwad,
            ["dead-letters", "replay", "--all", "--note", "benchmark"],
            environment: [
                "SIWAD_DATABASE_URL": bench.conninfo(service.database),
                "SIWAD_APPS": "\(Population.team)/\(Population.app)",
                "SIWAD_KEYS_URL": "file://\(tokens.keySet)",
            ]
        )
        let seconds = (clock.now - start) / .seconds(1)
        let count = try await bench.run(
            "SELECT count(*)::text FROM siwa.dead_letters WHERE status = 'replayed'",
            on: service.database
        )
        return (count.flatMap { Double($0) } ?? 0, seconds)
    }
}
