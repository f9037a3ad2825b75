package import AccountStore
package import Basics

/// What became of a request to an endpoint, as the HTTP client reports it.
package enum EndpointAnswer: Sendable, Equatable {
    /// A whole answer, with its fields `Retry-After` and `webhook-delivery`.
    case answered(status: Int, retryAfter: String? = nil, delivery: String? = nil)
    /// No answer, with the cause in words.
    case unanswered(DeliveryReason, String)
}

/// What an answer means for a delivery.
package enum AttemptOutcome: Sendable, Equatable {
    case delivered
    /// Attempt it again according to the schedule.
    case failed(DeliveryReason)
    /// The receiver wants no further attempt of this change.
    case aborted
    /// The receiver wants no further change. This one stays undelivered, whatever the status.
    case gone
    /// Wait for this time; the attempt does not count.
    case throttled(Duration)

    /// - Parameter now: for a date in `Retry-After`.
    package init(_ answer: EndpointAnswer, now: WallTime) {
        switch answer {
        case .unanswered(let reason, _):
            self = .failed(reason)
        case .answered(let status, let retryAfter, let delivery):
            switch (status, delivery?.lowercased()) {
            // Also with a 2xx: the header says more than the status.
            case (410, _), (_, "disable"): self = .gone
            case (200..<300, _): self = .delivered
            case (_, "abort-message"): self = .aborted
            case (429, _): self = .throttled(Self.pause(retryAfter, now: now))
            case (503, _) where retryAfter != nil: self = .throttled(Self.pause(retryAfter, now: now))
            case (300..<400, _): self = .failed(.redirected)
            case (400..<500, _): self = .failed(.refused)
            case (500..<600, _): self = .failed(.failed)
            default: self = .failed(.malformedAnswer)
            }
        }
    }

    /// As `siwa.deliveries.reason`; nil if it was delivered.
    package var reason: DeliveryReason? {
        switch self {
        case .delivered: nil
        case .failed(let reason): reason
        case .aborted: .aborted
        case .gone: .gone
        case .throttled: .throttled
        }
    }

    /// `Retry-After` (RFC 9110 §10.2.3): seconds or a date. What can't be read counts as a minute.
    private static func pause(_ retryAfter: String?, now: WallTime) -> Duration {
        guard let text = retryAfter?.trimmingPrefix(while: \.isWhitespace) else { return .seconds(60) }
        let pause: Duration
        if !text.isEmpty, text.utf8.allSatisfy({ 0x30...0x39 ~= $0 }) {
            // A number that is too large for 64 bits is later than the latest time below.
            pause = .seconds(min(Int64(text) ?? .max, 1 << 40))
        } else if let date = WallTime(httpDate: String(text)) {
            pause = date.duration(since: now)
        } else {
            return .seconds(60)
        }
        return min(max(pause, .seconds(1)), Circuit.longestPause)
    }
}

extension EndpointAnswer {
    /// nil without an answer.
    package var status: Int? {
        guard case .answered(let status, _, _) = self else { return nil }
        return status
    }

    /// In siwad's own words, without any part of the answer.
    package var words: String {
        switch self {
        case .unanswered(_, let words): words
        case .answered(let status, _, _): "answered \(status)"
        }
    }
}
