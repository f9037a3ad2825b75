/// What became of one notification that was sent.
package enum SendOutcome: Sendable, Equatable {
    /// The endpoint answered with this status and, unless it was 200, the first kilobytes of its body.
    case answered(status: Int, body: String, latency: Duration)
    /// No answer, and why.
    case failed(String)
}

/// What became of all of them.
package struct SendSummary: Sendable, Equatable {
    /// How many answers there were of each status.
    package internal(set) var statuses: [Int: Int] = [:]
    /// How many had no answer.
    package internal(set) var failures = 0
    /// Why the first of those had none.
    package internal(set) var firstFailure: String?
    /// From the first request to the last answer.
    package internal(set) var duration: Duration = .zero
    /// From each request to its answer, ascending.
    package internal(set) var latencies: [Duration] = []

    /// The latency that this share of the answers, from 0 to 1, did not exceed. `nil` without answers.
    package func latency(ofShare share: Double) -> Duration? {
        guard !latencies.isEmpty else { return nil }
        let rank = (share * Double(latencies.count)).rounded(.up)
        return latencies[min(max(Int(rank), 1), latencies.count) - 1]
    }

    /// Notes one more.
    mutating func note(_ outcome: SendOutcome) {
        switch outcome {
        case .answered(let status, _, let latency):
            statuses[status, default: 0] += 1
            latencies.append(latency)
        case .failed(let reason):
            failures += 1
            firstFailure = firstFailure ?? reason
        }
    }
}
