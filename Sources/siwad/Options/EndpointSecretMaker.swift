import AccountStore
import Basics
import JOSE
import Postgres
import Settings
import Terminal
import Webhooks

/// Makes and seals the secrets of endpoints.
struct EndpointSecretMaker: Sendable {
    private let keys: SealingKeys
    /// Used instead of new ones.
    private let imported: [WebhookSecret]

    /// - Parameter file: has one secret a line.
    /// - Throws: `CommandFailure` without sealing keys, or for a malformed file; its message contains no part of the file.
    init(_ invocation: Invocation, importing file: String? = nil) throws {
        keys = try invocation.sealingKeys(orElse: "secrets can't be sealed")
        guard let file else {
            imported = []
            return
        }
        let path = VisibleText.visible(file)
        do {
            let lines = String(decoding: try readFile(atPath: file), as: UTF8.self).split(whereSeparator: \.isNewline)
            let texts = lines.map { $0.filter { !$0.isWhitespace } }.filter { !$0.isEmpty }
            imported = try texts.map { text throws(WebhookError) in try WebhookSecret(parsing: text) }
        } catch {
            throw CommandFailure(.failed, "\(path): \(error)")
        }
        guard !imported.isEmpty else { throw CommandFailure(.failed, "\(path) is empty: write one secret a line") }
        guard Set(imported.map(\.purpose)).count == imported.count else {
            throw CommandFailure(.failed, "\(path) has two secrets of one kind: keep the latest")
        }
    }

    /// - Throws: `CommandFailure` if a secret was imported that the endpoint doesn't sign with.
    func check(_ signature: EndpointConfiguration.Signature) throws {
        let purposes = signature.purposes.map(\.rawValue)
        guard let other = imported.first(where: { !purposes.contains($0.purpose.rawValue) }) else { return }
        let (kind, needed) = (other.purpose.rawValue, purposes.joined(separator: " and "))
        throw CommandFailure(.failed, "the file has a secret for \(kind), but the endpoint signs with \(needed)")
    }

    /// - Throws: `CommandFailure` if the keys don't open a secret in use: the daemons' keys are others, and they could not open
    ///   what is sealed here.
    func checkKeys(of endpoints: [Endpoint], in session: borrowing Session) throws {
        for endpoint in endpoints {
            let purposes = endpoint.configuration.signature.purposes
            for secret in try EndpointSecrets.live(of: endpoint.id, in: session) where purposes.contains(secret.purpose)
            {
                _ = try secret.opened(of: endpoint, keys)
            }
        }
    }

    /// Makes a secret for each part of a signature.
    func make(
        _ signature: EndpointConfiguration.Signature,
        of endpoint: Int32,
        overlap: Duration = .zero,
        in session: borrowing Session
    ) throws {
        for purpose in signature.purposes { try make(purpose, of: endpoint, overlap: overlap, in: session) }
    }

    /// Stores a secret as the latest of its purpose.
    ///
    /// - Parameter overlap: the earlier one is used for so long.
    func make(
        _ purpose: SealedEndpointSecret.Purpose,
        of endpoint: Int32,
        overlap: Duration = .zero,
        in session: borrowing Session
    ) throws {
        let secret =
            try imported.first { $0.purpose.rawValue == purpose.rawValue }
            ?? (purpose == .hmac ? .newHMAC() : .newEd25519())
        let generation = try EndpointSecrets.nextGeneration(of: endpoint, purpose, in: session)
        let place = SealedSecret(endpoint: endpoint, purpose: secret.purpose, generation: generation)
        let sealed = try place.seal(secret.text, with: keys)
        try EndpointSecrets.insert(
            SealedEndpointSecret(purpose: purpose, generation: generation, sealed: sealed, keyID: keys.first),
            fingerprint: secret.fingerprint,
            of: endpoint,
            overlap: overlap,
            in: session
        )
    }
}

extension Invocation {
    /// - Throws: `CommandFailure` with the consequence if there are none.
    func sealingKeys(orElse consequence: String) throws(CommandFailure) -> SealingKeys {
        if let keys = configuration.sealingKeys { return keys }
        throw CommandFailure(
            .configuration,
            "\(SettingKey.sealingKeys.environmentName) is not set, so \(consequence)",
            nextStep: "set it as for the daemons; if they have none either, siwad sealing new-key prints a key"
        )
    }
}
