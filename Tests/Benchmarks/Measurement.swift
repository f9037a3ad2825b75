/// What a load found.
struct Measurement: Sendable {
    /// Requests that were answered.
    let count: Int
    /// Of them a second.
    let rate: Double
    /// Milliseconds.
    let median: Double
    let p99: Double
    let p999: Double
    /// Processor time for each notification, in microseconds.
    let serviceMicroseconds: Double
    let serverMicroseconds: Double
    /// MiB, at the end.
    let resident: Double
    let failures: Int
    let refusals: Int

    init(_ result: LoadResult, _ times: ProcessorTimes, resident: Double) {
        let requests = Double(max(1, result.requests))
        count = result.requests
        rate = result.rate
        (median, p99, p999) = result.latencies
        serviceMicroseconds = times.service / requests
        serverMicroseconds = times.server / requests
        self.resident = resident
        failures = result.failures
        refusals = result.refusals
    }

    /// Runs a load and sees what it costs the service and the PostgreSQL server.
    static func of(
        _ service: ProcessFigures,
        _ server: ProcessFigures,
        _ load: () async throws -> LoadResult
    ) async throws -> Measurement {
        let before = ProcessorTimes(of: service, server)
        let result = try await load()
        var times = ProcessorTimes()
        times.add(ProcessorTimes(of: service, server), since: before)
        return Measurement(result, times, resident: service.residentMebibytes)
    }

    /// The run of the median rate; of an even number, the slower of the two in the middle.
    static func typical(_ runs: [Measurement]) -> Measurement {
        let sorted = runs.sorted { $0.rate < $1.rate }
        return sorted[(sorted.count - 1) / 2]
    }
}

/// Processor time of a service and of the PostgreSQL server, in microseconds.
struct ProcessorTimes {
    private(set) var service = 0.0
    private(set) var server = 0.0

    init() {}

    init(of service: ProcessFigures, _ server: ProcessFigures) {
        self.service = service.processorMicroseconds
        self.server = server.processorMicroseconds
    }

    mutating func add(_ now: Self, since before: Self) {
        service += now.service - before.service
        server += now.server - before.server
    }
}

extension [Measurement] {
    /// The rates by those of the same rounds.
    func ratios(to others: [Measurement]) -> [Double] { zip(self, others).map { $0.rate / $1.rate } }
}
