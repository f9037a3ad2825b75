import AccountStore
import AppleClient
import AppleTokens
import NotificationServer
import Postgres
import Settings

/// Converts settings to parameters of the parts of siwad.
extension Configuration {
    /// - Throws: `SettingsError` if no database is configured, or if libpq can't parse its URL.
    func connectionSettings() throws -> ConnectionSettings {
        let conninfo: String?
        switch database {
        case .conninfo(let text): conninfo = text
        case .libpqEnvironment: conninfo = nil
        case .notConfigured:
            throw SettingsError(
                "no database is configured: set SIWAD_DATABASE_URL, for example to postgres://siwad@localhost/siwa"
            )
        }
        do throws(PostgresError) {
            return try ConnectionSettings(conninfo: conninfo, applicationName: "siwad")
        } catch {
            throw problem(.databaseURL, "\(error): write a libpq URI such as postgres://siwad@localhost/siwa")
        }
    }

    /// - Throws: `SettingsError` if no apps are configured.
    func audiences() throws(SettingsError) -> AudienceMap {
        guard let apps else {
            throw SettingsError(
                "no apps are configured: set SIWAD_APPS to TEAMID/primary.app.id, for example A1B2C3D4E5/com.example.app"
            )
        }
        return apps
    }

    func keySetURL() throws(SettingsError) -> KeySetURL {
        do throws(AppleClientError) {
            return try KeySetURL(parsing: keysURL)
        } catch {
            throw problem(.keysURL, error.description)
        }
    }

    /// Selects the stored keys that are trusted.
    func keyTrust() throws(SettingsError) -> SigningKeys.Trust {
        SigningKeys.Trust(url: try keySetURL().description, maximumAge: keysMaximumAge)
    }

    func policy() throws(SettingsError) -> NotificationPolicy {
        NotificationPolicy(issuer: issuer, audiences: try audiences(), leeway: clockLeeway)
    }

    var notificationAddress: ListenAddress {
        ListenAddress(host: listen.host, port: listen.port, setting: name(of: .listen))
    }

    var operationsAddress: ListenAddress {
        ListenAddress(
            host: operationsListen.host,
            port: operationsListen.port,
            setting: name(of: .operationsListen)
        )
    }
}
