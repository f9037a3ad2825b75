/// The figures of one run.
struct Measurement: Sendable {
    /// Requests that got a response.
    let count: Int
    /// Requests per second.
    let rate: Double
    /// Milliseconds.
    let median: Double
    let p99: Double
    let p999: Double
    /// Processor time per notification, in microseconds.
    let serviceMicroseconds: Double
    let serverMicroseconds: Double
    /// Resident memory of the service in MiB, at the end.
    let resident: Double
    let failures: Int
    let refusals: Int

    /// Runs a load and measures what it costs the service and the PostgreSQL server.
    static func of(
        _ service: ProcessFigures,
        _ server: ProcessFigures,
        _ load: () async throws -> LoadResult
    ) async throws -> Measurement {
        let before = (service: service.processorMicroseconds, server: server.processorMicroseconds)
        let result = try await load()
        let requests = Double(max(1, result.requests))
        return Measurement(
            count: result.requests,
            rate: result.rate,
            median: result.latencies.median,
            p99: result.latencies.p99,
            p999: result.latencies.p999,
            serviceMicroseconds: (service.processorMicroseconds - before.service) / requests,
            serverMicroseconds: (server.processorMicroseconds - before.server) / requests,
            resident: service.residentMebibytes,
            failures: result.failures,
            refusals: result.refusals
        )
    }

    /// The run with the median rate; for an even number of runs, the slower of the two in the middle.
    static func typical(_ runs: [Measurement]) -> Measurement {
        let sorted = runs.sorted { $0.rate < $1.rate }
        return sorted[(sorted.count - 1) / 2]
    }
}

extension [Measurement] {
    /// The rates divided by the rates of the same rounds in `others`.
    func ratios(to others: [Measurement]) -> [Double] { zip(self, others).map { $0.rate / $1.rate } }
}

extension [Double] {
    /// The middle value, or the mean of the two in the middle. The array must not be empty.
    var median: Double {
        let sorted = sorted()
        let middle = count / 2
        return count.isMultiple(of: 2) ? (sorted[middle - 1] + sorted[middle]) / 2 : sorted[middle]
    }
}
