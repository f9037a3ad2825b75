package import AccountStore
package import JOSE
package import Webhooks

extension WebhookSigner {
    /// The signer of an endpoint.
    ///
    /// - Throws: `noLiveSecret`; `unopenedSecret` and `foreignSecret` with the next step.
    package init(
        _ endpoint: Endpoint,
        _ secrets: [SealedEndpointSecret],
        keys: SealingKeys?
    ) throws(WebhookError) {
        let purposes = endpoint.configuration.signature.purposes
        let wanted = secrets.filter { purposes.contains($0.purpose) }
        guard !wanted.isEmpty else {
            throw WebhookError(.noLiveSecret, "it has no secret: siwad endpoints rotate \(endpoint.name) makes one")
        }
        guard let keys else {
            throw WebhookError(.unopenedSecret, "its secret can't be opened: SIWAD_SEALING_KEYS is not set")
        }
        self.init(
            try wanted.map { secret throws(WebhookError) in
                let purpose: SecretPurpose = secret.purpose == .hmac ? .hmac : .ed25519
                let row = SealedSecret(endpoint: endpoint.id, purpose: purpose, generation: secret.generation)
                let opened = try row.openWebhookSecret(secret.sealed, with: keys)
                return Generation(secret.generation, opened, expiresAt: secret.expiresAt)
            }
        )
    }
}
