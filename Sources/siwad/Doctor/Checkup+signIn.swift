import AppleTokens
import Basics
import JOSE
import Listening
import Settings
import WebClient

extension Checkup {
    /// Signs a client secret for each client id with each of its keys; nil without keys.
    func clientSecretFinding() -> Finding? {
        guard let keys = configuration.appleKeys else { return nil }
        do {
            // Also finds settings that don't fit together.
            _ = try configuration.signInPolicy()
            var clients = 0
            let groups = try configuration.audiences().groups
            for group in groups {
                for client in group.clients {
                    let entries = keys.entries(for: group)
                    for entry in entries { _ = try secret(for: client, of: group, entry) }
                    clients += entries.isEmpty ? 0 : 1
                }
            }
            let signed = "signed and verified for \(counted(clients, "client id"))"
            let unused = keys.entries.filter { entry in !groups.contains { keys.entries(for: $0).contains(entry) } }
            guard unused.isEmpty else {
                let names = unused.map(\.keyID).joined(separator: ", ")
                let apps = SettingKey.apps.environmentName
                return .warn(
                    .clientSecret,
                    "\(signed); no app group of \(apps) uses the key \(names)",
                    "correct the team or app of the key in \(SettingKey.appleKeys.environmentName), or \(apps)"
                )
            }
            return .pass(.clientSecret, signed)
        } catch {
            return .fail(.clientSecret, Self.failure(error))
        }
    }

    /// What Apple's token endpoint answers to an invented code of each client id.
    func liveFindings() async -> [Finding] {
        guard let keys = configuration.appleKeys, let audiences = configuration.apps else { return [] }
        do {
            return try await TokenEndpointClient.with(
                url: try configuration.appleBase(),
                version: Version.current,
                eventLoopGroup: loops.group
            ) { apple in
                var findings: [Finding] = []
                for group in audiences.groups {
                    for client in group.clients {
                        for entry in keys.entries(for: group) {
                            findings.append(try await liveFinding(client, of: group, entry, at: apple))
                        }
                    }
                }
                return findings
            }
        } catch {
            return [.fail(.appleClient, Self.failure(error))]
        }
    }

    private func liveFinding(
        _ client: ClientID,
        of group: AudienceMap.Group,
        _ entry: AppleKeys.Entry,
        at apple: TokenEndpointClient
    ) async throws -> Finding {
        let code = "c\(try SecureRandom.bytes(16).hexadecimal).0.siwad.\(Base64URL.encode(try SecureRandom.bytes(16)))"
        let grant = TokenGrant.code(
            code,
            redirectURI: nil,
            clientID: client.rawValue,
            clientSecret: try secret(for: client, of: group, entry)
        )
        let answer = await apple.send(grant, budget: .seconds(6)).answer
        return .appleClient(answer, "\(client) with \(entry.keyID)")
    }

    private func secret(
        for client: ClientID,
        of group: AudienceMap.Group,
        _ entry: AppleKeys.Entry
    ) throws -> String {
        try ClientSecret(
            client: client,
            team: group.team,
            keyID: entry.keyID,
            key: AppleKeyFile.read(entry),
            now: now(),
            lifetime: configuration.clientSecretLifetime
        ).text
    }
}

extension Finding {
    /// - Parameter subject: the client id and the key.
    static func appleClient(_ answer: TokenAnswer, _ subject: String) -> Finding {
        let (status, detail, remedy): (Status, String, String?) =
            switch answer {
            case .grantRefused:
                // Apple looks for the code first, so a wrong secret may get the same answer.
                (.pass, "Apple probably accepts the client: it refuses the invented code only", nil)
            case .clientRefused(let refusal):
                (
                    .fail,
                    "Apple answers \(refusal.code.rawValue)",
                    "check this machine's clock, and in the developer portal that the key exists and is of this team, and that "
                        + "the client id is registered and grouped with the primary App ID"
                )
            case .requestRefused(let refusal):
                (.warn, "Apple answers \(refusal.code.rawValue) to an invented code", "try again")
            case .unavailable(let unavailability):
                (.warn, "Apple's token endpoint gave no answer: \(unavailability.cause.rawValue)", "try again")
            case .issued: (.fail, "an invented code was accepted: this is not Apple", "correct SIWAD_APPLE_URL")
            }
        return Finding(check: .appleClient, subject: subject, status: status, detail: detail, remedy: remedy)
    }
}
