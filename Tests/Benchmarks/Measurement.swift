/// What one run found.
struct Measurement: Sendable {
    var rate: Double
    /// Milliseconds.
    var median: Double
    var p99: Double
    var p999: Double
    /// Processor time for each notification, in microseconds.
    var serviceMicroseconds: Double
    var serverMicroseconds: Double
    /// MiB, at the end.
    var resident: Double
    var failures: Int
    var refusals: Int

    /// Runs a load and sees what it costs the service and the PostgreSQL server.
    static func of(
        _ service: ProcessFigures,
        _ server: ProcessFigures,
        _ load: () async throws -> LoadResult
    ) async throws -> Measurement {
        let before = (service.processorMicroseconds, server.processorMicroseconds)
        let result = try await load()
        let requests = Double(max(1, result.requests))
        return Measurement(
            rate: result.rate,
            median: result.latencies.median,
            p99: result.latencies.p99,
            p999: result.latencies.p999,
            serviceMicroseconds: (service.processorMicroseconds - before.0) / requests,
            serverMicroseconds: (server.processorMicroseconds - before.1) / requests,
            resident: service.residentMebibytes,
            failures: result.failures,
            refusals: result.refusals
        )
    }

    /// The same, once it is certain that every request was answered with 200: what is refused or lost is cheap.
    func accepted(by service: String) throws -> Measurement {
        guard refusals == 0, failures == 0 else {
            throw BenchmarkError("\(service) refused \(refusals) notifications and left \(failures) without an answer")
        }
        return self
    }

    /// The run of the median rate; of an even number, the slower of the two in the middle.
    static func typical(_ runs: [Measurement]) -> Measurement {
        let sorted = runs.sorted { $0.rate < $1.rate }
        return sorted[(sorted.count - 1) / 2]
    }
}

extension [Measurement] {
    /// The rates by those of the same rounds.
    func ratios(to others: [Measurement]) -> [Double] { zip(self, others).map { $0.rate / $1.rate } }
}
