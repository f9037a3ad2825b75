import ArgumentParser

/// What siwad costs, measured on the machine at hand.
@main
struct Benchmarks: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "Benchmarks",
        abstract: "Measures siwad end to end and part by part, beside a Python and a Go service.",
        discussion: """
            Needs a release build of siwad. Databases and tokens are kept in the directory of --work and used again.

            Example:
              swift build -c release
              swift run -c release Benchmarks load
            """,
        subcommands: [
            LoadCommand.self, CompareCommand.self, MicroCommand.self, ReplayCommand.self, LettersCommand.self,
            GrowthCommand.self, SessionsCommand.self,
        ]
    )
}

/// What all measurements have in common.
struct BenchmarkOptions: ParsableArguments {
    @Option(help: "Where databases, tokens and results are kept.")
    var work = ".build/benchmarks"

    @Option(help: "The siwad to measure.")
    var siwad = ".build/release/siwad"

    @Option(help: "Seconds of each run.")
    var seconds = 5

    @Option(help: "Keep-alive connections of the load.")
    var connections = 64

    @Option(help: "Runs of each measurement; the median counts.")
    var rounds = 3

    @Flag(
        inversion: .prefixedNo,
        help: "Have the kernel reserve huge pages for PostgreSQL's buffers, which takes root."
    )
    var hugePages = true

    @Flag(help: "Print JSON, one object a line, instead of a table.")
    var json = false

    func validate() throws {
        guard (1...600).contains(seconds), (1...10_000).contains(connections), (1...99).contains(rounds) else {
            throw ValidationError("--seconds is 1 to 600, --connections 1 to 10000, --rounds 1 to 99")
        }
    }
}
