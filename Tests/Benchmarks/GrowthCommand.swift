import ArgumentParser
import FoundationEssentials

/// The same load on databases of growing size.
struct GrowthCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "growth",
        abstract: "Notifications a second by the number of accounts, and by the number of notifications stored before.",
        usage: "Benchmarks growth <options>",
        discussion: """
            Each database is measured beside the smallest, a second each in turn. The stored notifications carry short \
            stand-ins for their tokens and lie in six monthly partitions. The largest databases take a while to make and \
            gigabytes below --work.
            """
    )

    @OptionGroup var options: BenchmarkOptions

    @Option(help: "Numbers of accounts, separated by commas.")
    var accounts = "10000,1000000,10000000"

    @Option(help: "Numbers of notifications stored before, in a database of a million accounts.")
    var stored = "0,5000000,20000000"

    @Option(help: "Tokens to sign; a closed loop uses each once.")
    var tokens = 160_000

    @Option(help: "Where the picture goes.")
    var chart = "growth.svg"

    func run() async throws {
        let byAccounts = try Self.numbers(accounts).map { Size(people: $0, stored: 0) }
        let byStored = try Self.numbers(stored).map { Size(people: 1_000_000, stored: $0) }
        try await Workbench.with(options) { bench in
            let curves = try await measure(bench, Set(byAccounts + byStored).sorted())
            var report = Report([
                "accounts", "stored before", "per second", "service µs", "PostgreSQL µs", "of the smallest", "at least",
                "at most",
            ])
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

    /// How large a database is before a run.
    private struct Size: Hashable, Comparable {
        let people: Int
        let stored: Int

        static func < (a: Self, b: Self) -> Bool { (a.people, a.stored) < (b.people, b.stored) }
    }

    /// What was found of a size.
    private struct Findings {
        var runs: [Measurement] = []
        /// Notifications a second by those that the smallest database took meanwhile.
        var ratios: [Double] = []

        var share: Double { ratios.median }
    }

    /// Each size beside the smallest.
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
        for round in 1...options.rounds {
            for size in sizes {
                Progress.note(
                    "round \(round) of \(options.rounds): \(size.people) accounts, \(size.stored) notifications stored"
                )
                var entrants = [try await entrant(bench, size, place: 0)]
                if let smallest = sizes.first, size != smallest {
                    entrants.append(try await entrant(bench, smallest, place: 1))
                }
                let runs = try await bench.sideBySide(entrants, seconds: options.seconds)
                let ratio = runs[0].rate / runs[runs.count - 1].rate
                findings[size, default: Findings()].runs.append(runs[0])
                findings[size]?.ratios.append(ratio)
                Progress.note(
                    "\(Report.rounded(runs[0].rate, 0)) a second, \(Report.rounded(ratio, 2)) of what the smallest took"
                )
            }
        }
        return findings
    }

    private func entrant(_ bench: Workbench, _ size: Size, place: Int) async throws -> Entrant {
        let tokens = try await Tokens.minted(tokens, people: size.people, in: bench.directory)
        return Entrant(
            name: "siwad",
            service: .siwad(bench, place: place, tokens: tokens),
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
    /// Fills a database with people, and with notifications stored before.
    fileprivate func fill(_ name: String, people: Int, stored: Int) async throws {
        Progress.note("making a database of \(people) people and \(stored) notifications")
        try await migrate(name)
        for statement in Population.fillSiwad(people) + Population.storeNotifications(stored, people: people) {
            try await run(statement, on: name)
        }
    }
}
