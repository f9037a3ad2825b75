import ArgumentParser
import FoundationEssentials

/// What an application pays on each of its requests: one question whether a session is live.
struct SessionsCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "sessions",
        abstract: "Milliseconds that siwa.session_is_live takes, compared with one look-up by primary key.",
        usage: "Benchmarks sessions <options>",
        discussion: """
            pgbench runs prepared statements over one connection, for random sessions, after a warm-up run. The look-up \
            reads the row of the session alone. The two statements alternate; the median of --rounds counts. The exit \
            code is 1 if the function takes more than \(limit) ms, or more than \(ratioLimit) times the look-up.
            """
    )

    /// The longest that the function may take, in milliseconds.
    private static let limit = 0.12
    /// How many times the time of the look-up the function may take.
    private static let ratioLimit = 2.5

    @OptionGroup var options: BenchmarkOptions

    @Option(help: "Accounts, each with three sessions.")
    var accounts = 1_000_000

    /// What is asked, by the name of the row. The number of an account makes the names of its sessions.
    private static let questions = [
        ("SELECT by primary key", "SELECT * FROM siwa.account_sessions WHERE session_id = :id"),
        ("siwa.session_is_live", "SELECT siwa.session_is_live(:id)"),
    ]

    func run() async throws {
        let pgbench = try Self.findPgbench()
        try await Workbench.with(options) { bench in
            let base = bench.siwadBase(accounts)
            try await bench.database(base) { name in
                Progress.note("making \(accounts) accounts")
                try await bench.migrate(name)
                for statement in Population.fillSiwad(accounts) { try await bench.run(statement, on: name) }
            }
            try await bench.copy(base, to: "run")
            // Reads nearly every page of the tables once, so that no run waits for the disk.
            Progress.note("warming up")
            _ = try await milliseconds(Self.questions[1].1, for: 20, with: pgbench, in: bench)
            var taken = Self.questions.map { _ in [Double]() }
            for round in 1...options.rounds {
                Progress.note("round \(round) of \(options.rounds)")
                for (index, (_, question)) in Self.questions.enumerated() {
                    taken[index].append(
                        try await milliseconds(question, for: options.seconds, with: pgbench, in: bench)
                    )
                }
            }
            var report = Report(["question", "ms", "least", "most", "times"], options)
            for (index, (name, _)) in Self.questions.enumerated() {
                let ratio = taken[index].median / taken[0].median
                let figures = [taken[index].median, taken[index].min() ?? 0, taken[index].max() ?? 0]
                report.append(
                    [.text(name)] + figures.map { .number($0, decimals: 3) } + [.number(ratio, decimals: 2)]
                )
            }
            report.print(asJSON: options.json)
            let (lookUp, function) = (taken[0].median, taken[1].median)
            guard function <= Self.limit, function / lookUp <= Self.ratioLimit else {
                throw BenchmarkError(
                    "siwa.session_is_live is slower than \(Self.limit) ms or \(Self.ratioLimit) times the look-up"
                )
            }
        }
    }

    private func milliseconds(
        _ question: String,
        for seconds: Int,
        with pgbench: String,
        in bench: Workbench
    ) async throws -> Double {
        let script = "\(bench.directory)/question.sql"
        let id = "to_char(:account::bigint, 'FM0000000000') || '-2'"
        let text = "\\set account random(1, \(accounts))\n" + question.replacing(":id", with: id) + ";\n"
        try Data(text.utf8).write(to: URL(filePath: script))
        let printed = try await output(
            of: pgbench,
            // The database as an operand: before PostgreSQL 17, -d asks for debugging output.
            ["-n", "-M", "prepared", "-T", "\(seconds)", "-f", script, bench.conninfo("run")]
        )
        let latency = printed.split(separator: "\n").first { $0.hasPrefix("latency average = ") }
        guard let latency, let figure = Double(latency.dropFirst(18).prefix { $0 != " " }) else {
            throw BenchmarkError("pgbench printed no latency: \(printed)")
        }
        return figure
    }

    /// Debian keeps it with the server's programs.
    private static func findPgbench() throws -> String {
        let places = (14...40).reversed().map { "/usr/lib/postgresql/\($0)/bin/pgbench" } + ["/usr/bin/pgbench"]
        guard let found = places.first(where: FileManager.default.isExecutableFile(atPath:)) else {
            throw BenchmarkError("pgbench is not there: install the package postgresql")
        }
        return found
    }
}
