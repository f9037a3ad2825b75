import ArgumentParser
import FoundationEssentials

/// The same load on databases of growing size.
struct GrowthCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "growth",
        abstract: "Notifications a second by the number of accounts, and by the number of notifications stored before.",
        discussion: """
            The stored notifications carry short stand-ins for their tokens and lie in six monthly partitions. The largest
            databases take a while to make and gigabytes below --work.
            """
    )

    @OptionGroup var options: BenchmarkOptions

    @Option(help: "Numbers of accounts, separated by commas.")
    var accounts = "10000,1000000,10000000"

    @Option(help: "Numbers of notifications stored before, in a database of a million accounts.")
    var stored = "0,5000000,20000000"

    @Option(help: "Tokens to sign; a closed loop uses each once.")
    var tokens = 120_000

    @Option(help: "Where the picture goes.")
    var chart = "growth.svg"

    func run() async throws {
        let byAccounts = try Self.numbers(accounts).map { Size(people: $0, stored: 0) }
        let byStored = try Self.numbers(stored).map { Size(people: 1_000_000, stored: $0) }
        try await Workbench.with(options) { bench in
            let runs = try await measure(bench, Set(byAccounts + byStored).sorted())
            var report = Report([
                "accounts", "stored before", "per second", "service µs", "PostgreSQL µs", "of the smallest", "at least",
                "at most",
            ])
            let smallest = byAccounts.min().flatMap { runs[$0] } ?? []
            for size in runs.keys.sorted() {
                guard let runs = runs[size] else { continue }
                let typical = Measurement.typical(runs)
                report.append(
                    [
                        .number(Double(size.people), decimals: 0),
                        .number(Double(size.stored), decimals: 0),
                        .number(typical.rate, decimals: 0),
                        .number(typical.serviceMicroseconds, decimals: 1),
                        .number(typical.serverMicroseconds, decimals: 1),
                    ] + runs.ratios(to: smallest).spread
                )
            }
            report.print(asJSON: options.json)
            let chart = GrowthChart(series: [
                .init(name: "accounts", points: byAccounts.map { ($0.people, Self.rate(runs[$0])) }),
                .init(
                    name: "notifications stored, 1 M accounts",
                    points: byStored.map { ($0.stored, Self.rate(runs[$0])) }
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

    /// All sizes in turn in each round, so that a machine that changes its speed changes it for all of them.
    private func measure(_ bench: Workbench, _ sizes: [Size]) async throws -> [Size: [Measurement]] {
        for size in sizes {
            try await bench.siwadDatabase(people: size.people)
            if size.stored > 0 {
                try await bench.database(bench.siwadBase(size.people, stored: size.stored)) {
                    try await bench.fill($0, people: size.people, stored: size.stored)
                }
            }
        }
        var runs: [Size: [Measurement]] = [:]
        for round in 1...options.rounds {
            for size in sizes {
                Progress.note(
                    "round \(round) of \(options.rounds): \(size.people) accounts, \(size.stored) notifications stored"
                )
                let tokens = try await Tokens.minted(tokens, people: size.people, in: bench.directory)
                try await bench.copy(of: bench.siwadBase(size.people, stored: size.stored))
                let (seconds, connections) = (options.seconds, options.connections)
                let service = Service.siwad(bench, database: "run", tokens: tokens)
                runs[size, default: []].append(
                    try await service.running { figures in
                        try await Measurement.of(figures, bench.server) {
                            try await ClosedLoop(connections: connections, seconds: seconds)
                                .post(tokens.genuine, to: service.url)
                        }.accepted(by: "siwad")
                    }
                )
            }
        }
        return runs
    }

    private static func rate(_ runs: [Measurement]?) -> Double { runs.map { Measurement.typical($0).rate } ?? 0 }

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
