/// What a load found.
struct LoadResult: Sendable {
    /// Requests that were answered.
    let requests: Int
    let seconds: Double
    /// In milliseconds, at the median, at 99 % and at 99.9 %.
    let latencies: (median: Double, p99: Double, p999: Double)
    /// Requests without an answer.
    let failures: Int
    /// Answers other than 200.
    let refusals: Int

    /// A result.
    ///
    /// - Parameter latencies: of each request that was answered, in nanoseconds.
    init(latencies: [Int64], seconds: Double, failures: Int, refusals: Int) {
        let sorted = latencies.sorted()
        func at(_ share: Double) -> Double {
            guard !sorted.isEmpty else { return 0 }
            return Double(sorted[min(sorted.count - 1, Int(share * Double(sorted.count)))]) / 1e6
        }
        self.requests = sorted.count
        self.seconds = seconds
        self.latencies = (at(0.5), at(0.99), at(0.999))
        self.failures = failures
        self.refusals = refusals
    }

    var rate: Double { Double(requests) / seconds }
}

/// Where requests go.
struct LoadTarget {
    let host: String
    let port: Int
    /// A request up to the value of its Content-Length.
    let head: String

    /// Of a URL with an IPv4 address and a port.
    init(_ url: String) throws {
        let parts = url.dropFirst("http://".count).split(separator: "/", maxSplits: 1)
        let authority = parts.first?.split(separator: ":") ?? []
        guard parts.count == 2, authority.count == 2, let port = Int(authority[1]) else {
            throw BenchmarkError("\(url) is no URL to send to")
        }
        self.host = String(authority[0])
        self.port = port
        self.head =
            "POST /\(parts[1]) HTTP/1.1\r\nHost: \(host)\r\nContent-Type: application/json\r\nUser-Agent: Apple\r\n"
            + "Content-Length: "
    }
}
