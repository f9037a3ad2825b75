import AppleTokens
import ArgumentParser
import Basics
import JOSE
import Settings
import Terminal

struct ClientSecretCommand: Command {
    static let configuration = CommandConfiguration(
        commandName: "client-secret",
        abstract: "Print a client secret for Apple's token endpoint.",
        usage: "siwad client-secret --client-id <client-id> [<options>]",
        discussion: """
            For tools that want a secret to be entered. The key is one of SIWAD_APPLE_KEYS: the first for the app of the \
            client id, else the first for its team. With the secret, a program can act as the application until it expires.

            Example:
              siwad client-secret --client-id com.example.app --lifetime 180d
            """
    )

    @Option(help: ArgumentHelp("Client id, one of SIWAD_APPS.", valueName: "client-id"), completion: .clientID)
    var clientID: String
    @Option(
        parsing: .unconditional,
        help: ArgumentHelp(
            "How long it is valid, up to 15777000s (default: SIWAD_CLIENT_SECRET_LIFETIME).",
            valueName: "duration"
        ),
        transform: { text in
            guard let lifetime = Duration(short: text), .seconds(60)...ClientSecret.longestLifetime ~= lifetime else {
                throw ValidationError("write a duration from 1m to 15777000s, such as 180d")
            }
            return lifetime
        }
    )
    var lifetime: Duration?
    @Option(help: ArgumentHelp("Apps, as in SIWAD_APPS.", valueName: "apps"))
    var apps: String?
    @Option(help: ArgumentHelp("Keys, as in SIWAD_APPLE_KEYS.", valueName: "keys"))
    var appleKeys: String?
    @Flag(help: "Print one JSON object.")
    var json = false
    @OptionGroup var common: CommonOptions

    var flags: [SettingKey: String] {
        var flags: [SettingKey: String] = [:]
        flags[.apps] = apps
        flags[.appleKeys] = appleKeys
        return flags
    }

    func run(_ invocation: Invocation) async throws {
        let configuration = invocation.configuration
        guard let group = try configuration.audiences().group(audience: clientID) else {
            throw configuration.problem(
                .apps,
                "it has no client id \(Redaction.redacted(VisibleText.visible(clientID))): add it to its app"
            )
        }
        guard let keys = configuration.appleKeys else {
            let example = "A1B2C3D4E5/KEY1234567=/etc/siwad/AuthKey_KEY1234567.p8"
            throw SettingsError(
                "\(SettingKey.appleKeys.environmentName) is not set: name a key of your team, such as \(example)"
            )
        }
        guard let entry = keys.entries(for: group).first else {
            throw configuration.problem(.appleKeys, "no key is for team \(group.team) and app \(group.app): add one")
        }
        let key: P256PrivateKey
        do throws(AppleKeyFileError) {
            key = try AppleKeyFile.read(entry)
        } catch {
            throw configuration.problem(.appleKeys, error.description)
        }
        let secret = try ClientSecret(
            client: ClientID(clientID),
            team: group.team,
            keyID: entry.keyID,
            key: key,
            now: .now(),
            lifetime: lifetime ?? configuration.clientSecretLifetime
        )
        guard json else { return invocation.console.print(secret.text) }
        let members: [JSONText.Member] = [
            .init("client_id", clientID.json), .init("team_id", group.team.rawValue.json),
            .init("key_id", entry.keyID.json), .init("expires_at", secret.expiresAt.json),
            .init("client_secret", secret.text.json),
        ]
        invocation.console.print(JSONText.object(members).line)
    }
}
