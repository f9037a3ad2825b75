import ArgumentParser

@main
struct Benchmarks: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "Benchmarks",
        abstract: "Measures siwad end to end and part by part, and compares it with a Python and a Go service.",
        discussion: """
            Needs a release build of siwad. The directory of --work keeps databases and tokens for the next run.

            Example:
              swift build -c release
              swift run -c release Benchmarks load
            """,
        subcommands: [
            LoadCommand.self, CompareCommand.self, MicroCommand.self, ReplayCommand.self, LettersCommand.self,
            GrowthCommand.self, SessionsCommand.self, EffectsCommand.self, SignInCommand.self, LogCommand.self,
        ]
    )
}

/// Options of every measurement.
struct BenchmarkOptions: ParsableArguments {
    @Option(help: "Directory for databases, tokens and results.")
    var work = ".build/benchmarks"

    @Option(help: "The siwad executable to measure.")
    var siwad = ".build/release/siwad"

    @Option(help: "Seconds of each run.")
    var seconds = 5

    @Option(help: "Keep-alive connections of the load generator.")
    var connections = 64

    @Option(help: "Runs of each measurement; the report shows the median.")
    var rounds = 3

    @Flag(help: "Run PostgreSQL with large buffers and rare checkpoints instead of its stock settings.")
    var tuned = false

    @Flag(help: "Print JSON, one object per line, instead of a table.")
    var json = false

    func validate() throws {
        guard (1...600).contains(seconds), (1...10_000).contains(connections), (1...99).contains(rounds) else {
            throw ValidationError("--seconds is 1 to 600, --connections 1 to 10000, --rounds 1 to 99")
        }
    }
}
