package import AppleTokens

/// What a request is answered, whoever speaks HTTP.
package enum Answer: Sendable, Equatable {
    /// 200: it is durable, and Apple need not send it again.
    case acknowledged
    /// It isn't Apple's notification; nothing of it is kept.
    case refused(Rejection)
    /// 503: nothing is promised, come back after so many seconds.
    case unavailable(Unavailability, retryAfterSeconds: Int)
}

/// Why a request can't be answered at present.
package enum Unavailability: String, Sendable, Hashable, CaseIterable {
    /// Its key isn't known and Apple's key set can't be asked for.
    case keysUnavailable = "keys-unavailable"
    /// PostgreSQL is away or refuses to write.
    case databaseUnavailable = "database-unavailable"
    /// Too many wait for a transaction.
    case queueFull = "queue-full"
    /// Too many dead letters of its reason are open.
    case deadLetterLimit = "dead-letter-limit"
    /// The process is ending.
    case shuttingDown = "shutting-down"

    /// A short name of the condition, the same for every occurrence (RFC 9457 §3.1.3).
    package var title: String {
        switch self {
        case .keysUnavailable: "The signing key can't be looked up at present"
        case .databaseUnavailable: "Notifications can't be stored at present"
        case .queueFull: "Too many notifications are waiting"
        case .deadLetterLimit: "Too many notifications wait for an operator"
        case .shuttingDown: "The service is restarting"
        }
    }

    /// A sentence for the sender.
    package var detail: String {
        switch self {
        case .keysUnavailable, .databaseUnavailable, .queueFull, .deadLetterLimit:
            "Nothing is lost by sending it again after the time that Retry-After names."
        case .shuttingDown:
            "Send it again after the time that Retry-After names."
        }
    }
}

/// The answer to a request that had to wait for one.
package struct Reply: Sendable, Equatable {
    /// The number that the request came with.
    package let ticket: UInt64
    /// What to answer.
    package let answer: Answer

    /// An answer to the request of that number.
    package init(ticket: UInt64, answer: Answer) {
        self.ticket = ticket
        self.answer = answer
    }
}

/// Where the answers of one event loop go.
final class ReplyLane: Sendable {
    let deliver: @Sendable ([Reply]) -> Void

    init(deliver: @escaping @Sendable ([Reply]) -> Void) {
        self.deliver = deliver
    }
}
