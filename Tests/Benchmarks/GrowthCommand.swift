import ArgumentParser
import FoundationEssentials

struct GrowthCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "growth",
        abstract: "Notifications per second by the number of accounts and of stored notifications.",
        usage: "Benchmarks growth <options>",
        discussion: """
            Each database is measured in alternation with the smallest. Stored notifications have short placeholders for \
            their tokens and fill six monthly partitions. Creating the largest databases takes many minutes and needs \
            gigabytes in the directory of --work.
            """
    )

    @OptionGroup var options: BenchmarkOptions

    @Option(help: "Numbers of accounts, separated by commas.")
    var accounts = "10000,1000000,10000000"

    @Option(help: "Numbers of stored notifications in a database of a million accounts, separated by commas.")
    var stored = "0,5000000,20000000"

    @Option(help: "Tokens to sign; a run uses each once.")
    var tokens = 200_000

    @Option(help: "File for the picture.")
    var chart = "growth.svg"

    func run() async throws {
        let byAccounts = try Self.numbers(accounts).map { Size(people: $0, stored: 0) }
        let byStored = try Self.numbers(stored).map { Size(people: 1_000_000, stored: $0) }
        try await Workbench.with(options) { bench in
            let curves = try await measure(bench, Set(byAccounts + byStored).sorted())
            var report = Report(
                [
                    "accounts", "stored", "per second", "service µs", "PostgreSQL µs", "relative to the smallest",
                    "at least",
                    "at most",
                ],
                options
            )
            for (size, curve) in curves.sorted(by: { $0.key < $1.key }) {
                let typical = Measurement.typical(curve.runs)
                report.append(
                    [
                        .number(Double(size.people), decimals: 0),
                        .number(Double(size.stored), decimals: 0),
                        .number(typical.rate, decimals: 0),
                        .number(typical.serviceMicroseconds, decimals: 1),
                        .number(typical.serverMicroseconds, decimals: 1),
                    ] + curve.ratios.spread
                )
            }
            report.print(asJSON: options.json)
            let chart = GrowthChart(series: [
                .init(name: "accounts", points: byAccounts.map { ($0.people, curves[$0]?.share ?? 0) }),
                .init(
                    name: "notifications stored, 1 M accounts",
                    points: byStored.map { ($0.stored, curves[$0]?.share ?? 0) }
                ),
            ])
            try chart.svg.write(toFile: self.chart, atomically: true, encoding: .utf8)
        }
    }

    /// The size of a database before a run.
    private struct Size: Hashable, Comparable {
        let people: Int
        let stored: Int

        static func < (a: Self, b: Self) -> Bool { (a.people, a.stored) < (b.people, b.stored) }
    }

    private struct Findings {
        var runs: [Measurement] = []
        /// The rate divided by that of the smallest database in the same round.
        var ratios: [Double] = []

        var share: Double { ratios.median }
    }

    /// Measures each size in alternation with the smallest one.
    private func measure(_ bench: Workbench, _ sizes: [Size]) async throws -> [Size: Findings] {
        for size in sizes {
            try await bench.siwadDatabase(people: size.people)
            if size.stored > 0 {
                try await bench.database(bench.siwadBase(size.people, stored: size.stored)) {
                    try await bench.fill($0, people: size.people, stored: size.stored)
                }
            }
        }
        var findings: [Size: Findings] = [:]
        guard let smallest = sizes.first else { return findings }
        for size in sizes {
            var cases = [try await loadCase(bench, size)]
            if size != smallest { cases.append(try await loadCase(bench, smallest)) }
            let rounds = try await bench.rounds(options.rounds, of: cases, seconds: options.seconds)
            let (own, others) = (rounds.map { $0[0] }, rounds.map { $0[cases.count - 1] })
            findings[size] = Findings(runs: own, ratios: own.ratios(to: others))
        }
        return findings
    }

    private func loadCase(_ bench: Workbench, _ size: Size) async throws -> LoadCase {
        let tokens = try await Tokens.minted(tokens, people: size.people, in: bench.directory)
        return LoadCase(
            name: "\(size.people) accounts, \(size.stored) notifications stored",
            service: .siwad(bench, tokens: tokens),
            base: bench.siwadBase(size.people, stored: size.stored),
            bodies: tokens.genuine,
            connections: options.connections
        )
    }

    private static func numbers(_ text: String) throws -> [Int] {
        let numbers = text.split(separator: ",").map { Int($0) ?? -1 }
        guard !numbers.isEmpty, numbers.allSatisfy({ $0 >= 0 }) else {
            throw ValidationError("\(text) is not a list of numbers, separated by commas")
        }
        return numbers
    }
}

extension Workbench {
    /// Fills a database with people and notifications.
    fileprivate func fill(_ name: String, people: Int, stored: Int) async throws {
        Progress.note("creating a database with \(people) people and \(stored) notifications")
        try await migrate(name)
        for statement in Population.fillSiwad(people) + Population.storeNotifications(stored, people: people) {
            try await run(statement, on: name)
        }
    }
}
