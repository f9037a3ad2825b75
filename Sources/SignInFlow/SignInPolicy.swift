package import AppleTokens
import Basics
package import JOSE
package import SignIn

/// The settings of sign-ins, which a reload replaces as a whole.
package struct SignInPolicy: Sendable {
    package let audiences: AudienceMap
    package let identity: IdentityPolicy
    package let exchange: CodeExchange
    package let keepsNames: Bool
    /// Codes are refused without it.
    package let trade: Trade?
    let nonces: IssuedNonces?

    /// What the exchange of codes needs.
    package struct Trade: Sendable {
        package let secrets: ClientSecrets
        package let sealingKeys: SealingKeys

        package init(secrets: ClientSecrets, sealingKeys: SealingKeys) {
            self.secrets = secrets
            self.sealingKeys = sealingKeys
        }
    }

    /// - Parameters:
    ///   - sealingKeys: nil: siwad issues no nonces.
    ///   - secrets: nil: codes are refused.
    package init(
        audiences: AudienceMap,
        identity: IdentityPolicy,
        exchange: CodeExchange,
        keepsNames: Bool,
        sealingKeys: SealingKeys?,
        secrets: ClientSecrets?
    ) throws(JOSEError) {
        self.audiences = audiences
        self.identity = identity
        self.exchange = exchange
        self.keepsNames = keepsNames
        nonces = try sealingKeys.map { keys throws(JOSEError) in try IssuedNonces(keys: keys) }
        if let secrets, let sealingKeys {
            trade = Trade(secrets: secrets, sealingKeys: sealingKeys)
        } else {
            trade = nil
        }
    }

    /// The clients whose codes can be traded with these settings.
    var tradedClients: [ClientID] {
        guard let trade else { return [] }
        return audiences.groups.filter { trade.secrets.keyID(for: $0) != nil }.flatMap(\.clients)
    }

    /// The rules for a token out of Apple's answer. Its age says nothing: it was just issued.
    var answerIdentity: IdentityPolicy {
        IdentityPolicy(
            issuer: identity.issuer,
            maximumAge: .seconds(86_400),
            leeway: identity.leeway,
            nonce: nil
        )
    }

    /// The nonce that came with a code alone, before the code is used up. Its time is checked later: a repeated request, whose
    /// nonce was in time once, is recognised by its reservation.
    func check(nonceOfCode nonce: String?, of client: ClientID) throws(Problem) {
        guard nonce != nil || identity.nonce == .optional else {
            throw Problem(.nonceMissing, "The request has no nonce.")
        }
        try check(nonce, of: client, usedAt: nil)
    }

    /// Nonces of siwad's own are only accepted in their time; with the policy `issued`, no others are.
    ///
    /// - Parameter time: when the nonce was used; nil: its time is not checked.
    func check(_ nonce: String?, of client: ClientID, usedAt time: WallTime?) throws(Problem) {
        switch finding(nonce, client, time ?? .now()) {
        case .late where time != nil:
            throw Problem(.nonceExpired, "The nonce was issued more than ten minutes before it was used.")
        case .issued, .late: break
        case .foreign:
            guard identity.nonce == .issued else { return }
            let detail = "SIWAD_NONCE is issued, so only a nonce from POST /v1/nonces for this client id is accepted."
            throw Problem(nonce == nil ? .nonceMissing : .nonceMismatch, detail)
        }
    }

    private func finding(_ nonce: String?, _ client: ClientID, _ time: WallTime) -> IssuedNonces.Finding {
        guard let nonce, let nonces else { return .foreign }
        // A nonce that libcrypto can't check for lack of memory was not issued as far as siwad knows.
        return (try? nonces.find(nonce, for: client, now: time)) ?? .foreign
    }
}
