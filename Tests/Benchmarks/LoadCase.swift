import FoundationEssentials
import NIOPosix

/// A service, its database and the load that it is measured under.
struct LoadCase: Sendable {
    enum Requests {
        /// Notifications that the service has not seen.
        case genuine
        /// Notifications that the warm-up run has already sent.
        case duplicates
        /// Notifications with a wrong signature.
        case forged
    }

    let name: String
    let service: Service
    /// The database to copy for each run; nil if the caller prepares the database.
    let base: String?
    /// The file of request bodies, one per line.
    let bodies: String
    let connections: Int
    var requests = Requests.genuine
    /// A token of the caller.
    var bearer: String?
}

extension Workbench {
    private static let warmUpSeconds = 2

    /// Measures several cases in alternation, and returns the measurements of each round in the order of `cases`. Every
    /// second round goes through the cases in reverse order.
    func rounds(_ count: Int, of cases: [LoadCase], seconds: Int) async throws -> [[Measurement]] {
        var rounds: [[Measurement]] = []
        for round in 1...count {
            let order = round.isMultiple(of: 2) ? Array(cases.indices.reversed()) : Array(cases.indices)
            var measurements: [Int: Measurement] = [:]
            for index in order {
                let measurement = try await measure(cases[index], seconds: seconds)
                let rate = Report.rounded(measurement.rate, 0)
                Progress.note("round \(round) of \(count): \(cases[index].name): \(rate) per second")
                measurements[index] = measurement
            }
            rounds.append(cases.indices.compactMap { measurements[$0] })
        }
        return rounds
    }

    /// Measures one case on a fresh copy of its database: a warm-up run, a checkpoint, then the measured run.
    ///
    /// - Throws: ``BenchmarkError`` if a request got no response or an unexpected one.
    func measure(_ load: LoadCase, seconds: Int) async throws -> Measurement {
        if let base = load.base { try await copy(base, to: load.service.database) }
        let bodies = Array(try Data(contentsOf: URL(filePath: load.bodies)))
        return try await load.service.running { figures in
            let (_, next) = try await run(load, bodies, 0..<bodies.count, seconds: Self.warmUpSeconds)
            try await run("CHECKPOINT")
            let range =
                switch load.requests {
                case .genuine: next..<bodies.count
                case .duplicates: 0..<next
                case .forged: 0..<bodies.count
                }
            return try await Measurement.of(figures, server) {
                try await run(load, bodies, range, seconds: seconds).result
            }.checked(load.requests, by: load.name)
        }
    }

    private func run(
        _ load: LoadCase,
        _ bodies: [UInt8],
        _ range: Range<Int>,
        seconds: Int
    ) async throws -> (result: LoadResult, position: Int) {
        // A thread of its own: the loop blocks for seconds.
        try await NIOThreadPool.singleton.runIfActive {
            let loop = try ClosedLoop(
                connections: load.connections,
                to: load.service.url,
                bearer: load.bearer,
                bodies,
                range,
                repeats: load.requests != .genuine
            )
            return (try loop.run(seconds: seconds), loop.position)
        }
    }
}

extension Measurement {
    /// The same measurement, if every request got the expected response. Lost and refused requests are cheap, so they
    /// would make the figures look better.
    func checked(_ requests: LoadCase.Requests, by service: String) throws -> Measurement {
        guard failures == 0 else { throw BenchmarkError("\(service) did not respond to \(failures) notifications") }
        switch requests {
        case .genuine, .duplicates:
            guard refusals == 0 else { throw BenchmarkError("\(service) refused \(refusals) notifications") }
        case .forged:
            guard refusals == count else {
                throw BenchmarkError("\(service) accepted \(count - refusals) forged notifications")
            }
        }
        return self
    }
}
