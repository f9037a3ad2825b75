import FoundationEssentials

/// A closed loop: every connection sends its next request when the last is answered. wrk does it, because it costs a
/// fraction of what it measures.
struct Wrk {
    /// What a run found.
    struct Result: Sendable {
        let requests: Double
        let seconds: Double
        /// In milliseconds, at the median, at 99 % and at 99.9 %.
        let latencies: (median: Double, p99: Double, p999: Double)
        /// Requests without an answer.
        let failures: Int
        /// Answers other than 2xx and 3xx.
        let refusals: Int

        var rate: Double { requests / seconds }
    }

    let directory: String

    /// Posts the lines of a file, each once, one after another.
    func post(_ bodies: String, to url: String, connections: Int, seconds: Int, skipping: Int = 0) async throws
        -> Result
    {
        let script = "\(directory)/wrk.lua"
        try Self.script.write(toFile: script, atomically: true, encoding: .utf8)
        let text: String
        do {
            text = try await output(
                of: "wrk",
                [
                    "-t1", "-c\(connections)", "-d\(seconds)s", "--timeout", "20s", "-s", script, url, "--", bodies,
                    "\(skipping)",
                ]
            )
        } catch {
            throw BenchmarkError("\(error); if it is missing: apt-get install wrk")
        }
        guard let line = text.split(separator: "\n").first(where: { $0.hasPrefix("RESULT ") }) else {
            throw BenchmarkError("wrk said nothing of a result")
        }
        let fields = line.split(separator: " ").dropFirst().compactMap { Double($0) }
        guard fields.count == 8 else { throw BenchmarkError("wrk's result can't be read: \(line)") }
        guard fields[7] == 0 else {
            throw BenchmarkError("the tokens were used up before the time was: raise --tokens, or lower --seconds")
        }
        return Result(
            requests: fields[0],
            seconds: fields[1],
            latencies: (fields[2], fields[3], fields[4]),
            failures: Int(fields[5]),
            refusals: Int(fields[6])
        )
    }

    private static let script = """
        local threads = {}
        function setup(thread)
          thread:set("exhausted", 0)
          table.insert(threads, thread)
        end
        local bodies
        function init(arguments)
          bodies = assert(io.open(arguments[1], "r"))
          for _ = 1, tonumber(arguments[2]) do bodies:read("*l") end
        end
        local head = "POST " .. wrk.path .. " HTTP/1.1\\r\\nHost: 127.0.0.1\\r\\nContent-Type: application/json\\r\\n"
          .. "User-Agent: Apple\\r\\nContent-Length: "
        function request()
          local body = bodies:read("*l")
          if not body then
            exhausted = 1
            wrk.thread:stop()
            body = ""
          end
          return head .. #body .. "\\r\\n\\r\\n" .. body
        end
        function done(summary, latency)
          local errors = summary.errors
          local exhausted = 0
          for _, thread in ipairs(threads) do exhausted = exhausted + thread:get("exhausted") end
          io.write(string.format("RESULT %d %.6f %.4f %.4f %.4f %d %d %d\\n", summary.requests, summary.duration / 1e6,
            latency:percentile(50) / 1000, latency:percentile(99) / 1000, latency:percentile(99.9) / 1000,
            errors.connect + errors.read + errors.write + errors.timeout, errors.status, exhausted))
        end

        """
}
