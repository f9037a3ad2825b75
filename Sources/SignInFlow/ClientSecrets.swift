package import AppleTokens
import Basics
package import JOSE
import Synchronization
import WebClient

/// Signs the client secrets for Apple's token endpoint, and chooses among the keys of an app group.
package final class ClientSecrets: Sendable {
    /// A key that Apple issued to a team.
    package struct Key: Sendable {
        package let id: String
        package let key: P256PrivateKey

        package init(id: String, key: P256PrivateKey) {
            self.id = id
            self.key = key
        }
    }

    private struct Slot: Hashable {
        let client: ClientID
        let keyID: String
    }

    private struct State {
        var choices: [AppID: ClientKeyChoice] = [:]
        var secrets: [Slot: ClientSecret] = [:]
    }

    /// How long before its end a secret is replaced.
    private static let margin = Duration.seconds(60)

    package let lifetime: Duration
    private let keys: [AppID: [Key]]
    private let state: Mutex<State>

    /// - Parameter keys: of each app group, the most specific first.
    package init(keys: [AppID: [Key]], lifetime: Duration) {
        self.keys = keys
        self.lifetime = lifetime
        state = Mutex(State(choices: keys.compactMapValues { ClientKeyChoice(keyIDs: $0.map(\.id)) }))
    }

    /// The key for the next request; nil if the app group has none.
    func keyID(for group: AudienceMap.Group) -> String? {
        state.withLock { $0.choices[group.app]?.keyID }
    }

    /// Apple did not refuse the client whose secret this key signed.
    func accepted(_ keyID: String, for group: AudienceMap.Group) {
        state.withLock { $0.choices[group.app]?.accepted(keyID) }
    }

    /// Apple refused the client.
    ///
    /// - Parameter tried: the keys of this exchange in the order of its attempts.
    func clientRefused(tried: [String], for group: AudienceMap.Group) -> ClientKeyChoice.Step {
        state.withLock { $0.choices[group.app]?.clientRefused(tried: tried) } ?? .giveUp(tried: tried)
    }

    /// A secret that is valid for at least a minute, or as long as its lifetime allows. One from the future, signed before the clock
    /// was set back, is replaced: Apple would refuse it.
    func secret(
        for client: ClientID,
        of group: AudienceMap.Group,
        keyID: String,
        now: WallTime
    ) throws(JOSEError) -> String {
        let slot = Slot(client: client, keyID: keyID)
        if let secret = state.withLock({ $0.secrets[slot] }), secret.issuedAt <= now,
            now < secret.expiresAt - Self.margin
        {
            return secret.text
        }
        guard let key = keys[group.app]?.first(where: { $0.id == keyID }) else {
            preconditionFailure("a choice has only keys of its app group")
        }
        // Signed without the lock: another task may sign one too, which does no harm.
        let secret = try ClientSecret(
            client: client,
            team: group.team,
            keyID: keyID,
            key: key.key,
            now: now,
            lifetime: lifetime
        )
        state.withLock { $0.secrets[slot] = secret }
        return secret.text
    }
}
