import AppleTokens
import Ingest
import Telemetry

/// What a request is answered with.
enum Outcome: Hashable, Sendable {
    /// 200.
    case acknowledged
    /// Refused by verification, or for its size.
    case refused(Rejection)
    /// 503.
    case unavailable(Unavailability, retryAfterSeconds: Int)
    /// 503: the intake took longer than a request may wait.
    case answerTimedOut
    /// Refused by HTTP.
    case protocolError(ProtocolError)

    /// What the intake answered.
    init(_ answer: Answer) {
        switch answer {
        case .acknowledged: self = .acknowledged
        case .refused(let rejection): self = .refused(rejection)
        case .unavailable(let reason, let seconds): self = .unavailable(reason, retryAfterSeconds: seconds)
        }
    }

    /// Counts it where operators look.
    func count(in metrics: SiwadMetrics) {
        switch self {
        case .acknowledged:
            break
        case .refused(let rejection):
            metrics.rejections.increment(rejection.rawValue)
        case .unavailable(let reason, _):
            metrics.unavailable.increment(reason.rawValue)
        case .answerTimedOut:
            metrics.unavailable.increment("answer-timeout")
        case .protocolError(let error):
            if error.isCounted {
                metrics.rejections.increment(error.rawValue)
            }
        }
    }
}
