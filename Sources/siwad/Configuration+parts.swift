import AccountStore
import AppleClient
import AppleTokens
import NotificationServer
import Postgres
import Settings

/// From settings to what the parts of siwad take.
extension Configuration {
    /// How to connect to the database.
    /// - Throws: `SettingsError` when none is configured, or when libpq can't read what is.
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

    /// The apps that are served.
    /// - Throws: `SettingsError` when there are none.
    func audiences() throws(SettingsError) -> AudienceMap {
        guard let apps else {
            throw SettingsError(
                "no apps are configured: set SIWAD_APPS to TEAMID/primary.app.id, for example A1B2C3D4E5/com.example.app"
            )
        }
        return apps
    }

    /// Where Apple's key set is.
    func keySetURL() throws(SettingsError) -> KeySetURL {
        do throws(AppleClientError) {
            return try KeySetURL(parsing: keysURL)
        } catch {
            throw problem(.keysURL, error.description)
        }
    }

    /// Which of the kept keys count.
    func keyTrust() throws(SettingsError) -> SigningKeys.Trust {
        SigningKeys.Trust(url: try keySetURL().description, maximumAge: keysMaximumAge)
    }

    /// What a notification must be to be accepted.
    func policy() throws(SettingsError) -> NotificationPolicy {
        NotificationPolicy(issuer: issuer, audiences: try audiences(), leeway: clockLeeway)
    }

    /// The address of the notification endpoint.
    var notificationAddress: ListenAddress {
        ListenAddress(host: listen.host, port: listen.port, setting: name(of: .listen))
    }

    /// The address of the operations endpoint.
    var operationsAddress: ListenAddress {
        ListenAddress(
            host: operationsListen.host,
            port: operationsListen.port,
            setting: name(of: .operationsListen)
        )
    }
}
