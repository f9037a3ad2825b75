package import AccountStore
package import AppleTokens
package import JOSE

/// The keys that verify what was kept unverified: Apple's of today, and those that were seen before.
package struct ReplayKeys: Sendable {
    /// All of them.
    package let set: KeySet
    /// Why Apple's keys of today are not among them; nil: they are, or weren't asked for.
    package let problem: String?
    /// Keys that are not Apple's of today, with the time until which they were.
    private let lastSeenAt: [String: WallTime]

    /// No keys: for letters that are verified already.
    package static let none = ReplayKeys(today: [], kept: [], problem: nil)

    /// Keys of today and those that were kept.
    ///
    /// - Parameter kept: what can't be read as a key is left out.
    package init(today: [JSONWebKey], kept: [SigningKeys.Seen], problem: String?) {
        var lastSeenAt: [String: WallTime] = [:]
        var keys = today
        for seen in kept where !today.contains(where: { $0.keyID == seen.key.keyID }) {
            // Every kept key was read as one before it was written.
            guard let key = try? JSONWebKey(JSONValue(parsing: Array(seen.key.jwk.utf8))) else { continue }
            keys.append(key)
            lastSeenAt[key.keyID] = seen.lastSeenAt
        }
        self.set = KeySet(keys, fetchedAt: nil)
        self.problem = problem
        self.lastSeenAt = lastSeenAt
    }

    /// Whether a key may vouch for a token that was received then: one that Apple had withdrawn before may not.
    package func covers(_ kid: String, receivedAt: WallTime, leeway: Duration) -> Bool {
        guard set.contains(kid: kid) else { return false }
        return lastSeenAt[kid].map { $0 + leeway >= receivedAt } ?? true
    }
}
