extension KeySetCache {
    /// What to tell who wants a key.
    package enum Verdict: Sendable, Hashable {
        /// ``KeySetCache/keys`` has it: verify with that set.
        case keyFound
        /// Apple's set is fresh and lacks it.
        case unknownKey
        /// It can't be said at present, or the key is there and can't be used; worth asking again after so many seconds, at least 1.
        case keysUnavailable(retryAfterSeconds: Int)
    }

    /// What to tell one of those who wait.
    package struct Resolution: Sendable, Hashable {
        /// The number that the caller gave with ``KeySetCache/keyWanted(_:waiter:at:)``.
        package let waiter: Int
        /// What to tell it.
        package let verdict: Verdict
    }

    /// What to do for who wants a key.
    package enum KeyWantedAction: Sendable, Hashable {
        /// Tell it at once.
        case answer(Verdict)
        /// Keep it waiting until a ``Resolution`` names it.
        case wait
        /// Keep it waiting, and begin a fetch.
        case fetchAndWait
    }

    /// What to do when a refresh is due.
    package enum RefreshDueAction: Sendable, Hashable {
        /// Begin a fetch.
        case fetch
        /// Nothing.
        case none
    }

    /// What to do after a fetch.
    package struct FetchEndedAction: Sendable, Hashable {
        /// Tell these.
        package let resolutions: [Resolution]
        /// Begin another fetch at once: somebody waits for a key that the ended one could not settle.
        package let fetchesAgain: Bool

        static let none = FetchEndedAction(resolutions: [], fetchesAgain: false)
    }
}
