import ArgumentParser

/// What the log lines about notifications cost.
struct LogCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "log",
        abstract: "Notifications per second with a log of level info, compared with level warning.",
        usage: "Benchmarks log <options>",
        discussion: """
            Both levels are measured in each round, in alternation, on fresh copies of the same database. Nothing reads the \
            log: what journald or a collector needs on the same machine comes on top.
            """
    )

    @OptionGroup var options: BenchmarkOptions

    @Option(help: "People in the database, with three sessions each.")
    var people = 100_000

    @Option(help: "Tokens to sign; a run uses each genuine one once.")
    var tokens = 200_000

    func run() async throws {
        try await Workbench.with(options) { bench in
            let tokens = try await Tokens.minted(tokens, people: people, in: bench.directory)
            try await bench.siwadDatabase(people: people)
            let load = SiwadLoad(bench: bench, tokens: tokens, people: people, options: options)
            let cases = ["info", "warning"].map { level in
                load.closed("log level \(level)", options.connections, settings: ["SIWAD_LOG_LEVEL": level])
            }
            let rounds = try await bench.rounds(options.rounds, of: cases, seconds: options.seconds)
            var report = Report(Report.figureColumns, options)
            report.append(Report.figure("notifications a second, info", rounds.map { $0[0].rate }))
            report.append(
                Report.figure(
                    "notifications a second, info : warning",
                    rounds.map { $0[0].rate / $0[1].rate },
                    "≥ 0.97"
                )
            )
            report.append(
                Report.figure(
                    "µs of siwad for a notification, info : warning",
                    rounds.map { $0[0].serviceMicroseconds / $0[1].serviceMicroseconds }
                )
            )
            report.print(asJSON: options.json)
        }
    }
}
