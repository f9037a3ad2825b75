/// Latencies and failures of one run.
struct LoadResult: Sendable {
    /// Requests that got a response.
    let requests: Int
    let seconds: Double
    /// Milliseconds.
    let latencies: (median: Double, p99: Double, p999: Double)
    /// Requests without a response.
    let failures: Int
    /// Responses other than 200.
    let refusals: Int

    /// - Parameter latencies: nanoseconds, one for each request with a response.
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

/// The address and the request head of a load.
struct LoadTarget {
    let host: String
    let port: Int
    /// A request up to the value of its Content-Length.
    let head: String

    /// - Parameters:
    ///   - url: an `http:` URL with an IPv4 address and a port.
    ///   - bearer: a token of the caller.
    init(_ url: String, bearer: String?) throws {
        let parts = url.dropFirst("http://".count).split(separator: "/", maxSplits: 1)
        let authority = parts.first?.split(separator: ":") ?? []
        guard parts.count == 2, authority.count == 2, let port = Int(authority[1]) else {
            throw BenchmarkError("\(url) is not http://ADDRESS:PORT/PATH")
        }
        self.host = String(authority[0])
        self.port = port
        self.head =
            "POST /\(parts[1]) HTTP/1.1\r\nHost: \(host)\r\nContent-Type: application/json\r\nUser-Agent: Apple\r\n"
            + (bearer.map { "Authorization: Bearer \($0)\r\n" } ?? "") + "Content-Length: "
    }
}
