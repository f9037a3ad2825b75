/// Which of several keys signs the client secrets of a client. While a developer replaces a key, Apple may accept one only.
///
/// The first key signs until Apple refuses the client; then the next one is tried once, and stays if Apple accepts it.
package struct ClientKeyChoice: Sendable, Equatable {
    package enum Step: Sendable, Equatable {
        case tryAgain(keyID: String)
        /// Apple refuses the client with every key that was tried.
        case giveUp(tried: [String])
    }

    private let keyIDs: [String]
    private var current = 0

    /// - Parameter keyIDs: of one team, the most specific first.
    package init?(keyIDs: [String]) {
        guard !keyIDs.isEmpty else { return nil }
        self.keyIDs = keyIDs
    }

    /// The key for the next request.
    package var keyID: String { keyIDs[current] }

    /// Apple did not refuse the client whose secret this key signed.
    package mutating func accepted(_ keyID: String) {
        guard let index = keyIDs.firstIndex(of: keyID) else { return }
        current = index
    }

    /// Apple refused the client. The choice stays until another key is accepted.
    ///
    /// - Parameter tried: the keys of this exchange in the order of its attempts.
    package func clientRefused(tried: [String]) -> Step {
        guard tried.count == 1, let index = keyIDs.firstIndex(of: tried[0]) else { return .giveUp(tried: tried) }
        let next = keyIDs[(index + 1) % keyIDs.count]
        return next == tried[0] ? .giveUp(tried: tried) : .tryAgain(keyID: next)
    }
}
