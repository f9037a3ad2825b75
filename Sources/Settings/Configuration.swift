package import AppleTokens
package import Telemetry

/// Every setting of siwad with its value in force.
package struct Configuration: Sendable {
    /// How the database is found.
    package enum Database: Sendable, Equatable {
        /// A libpq URI or conninfo; may hold a password.
        case conninfo(String)
        /// libpq's own `PG*` variables, of which at least one that names a server or a database is set.
        case libpqEnvironment
        /// Nothing says where it is.
        case notConfigured
    }

    /// The two PEM files of the notification endpoint.
    package struct TLSFiles: Sendable, Equatable {
        /// The certificate chain.
        package let certificate: String
        /// The private key.
        package let key: String
    }

    /// A setting as `siwad config` prints it.
    package struct Entry: Sendable, Equatable {
        /// The setting.
        package let key: SettingKey
        /// The value in force, secrets masked; nil where there is none.
        package let text: String?
        /// Where it comes from.
        package let origin: SettingOrigin
        /// Why there is no value of it in force; nil if there is, or need not be.
        package var problem: Problem?

        /// Why a setting has no value in force.
        package enum Problem: String, Sendable {
            /// What its source says is no value of it.
            case malformed
            /// Nobody set it, and there is no default.
            case missing
        }
    }

    /// `database_url`
    package internal(set) var database = Database.notConfigured
    /// `database_connections`, ``leastDatabaseConnections`` to 100.
    package internal(set) var databaseConnections = 4
    /// `apps`; nil where nobody set it.
    package internal(set) var apps: AudienceMap?
    /// `listen`
    package internal(set) var listen = HostAndPort(host: "127.0.0.1", port: 8080)
    /// `notification_path`
    package internal(set) var notificationPath = "/apple/notifications"
    /// `tls_certificate` and `tls_key`
    package internal(set) var tls: TLSFiles?
    /// `operations_listen`
    package internal(set) var operationsListen = HostAndPort(host: "127.0.0.1", port: 9090)
    /// `keys_url`; whether it is one that is allowed, the client of it says.
    package internal(set) var keysURL = "https://appleid.apple.com/auth/keys"
    /// `keys_refresh`
    package internal(set) var keysRefresh = Duration.seconds(3_600)
    /// `keys_refresh_floor`
    package internal(set) var keysRefreshFloor = Duration.seconds(60)
    /// `keys_refresh_burst`
    package internal(set) var keysRefreshBurst = 5
    /// `keys_maximum_age`
    package internal(set) var keysMaximumAge = Duration.seconds(30 * 86_400)
    /// `issuer`
    package internal(set) var issuer = "https://appleid.apple.com"
    /// `clock_leeway`
    package internal(set) var clockLeeway = Duration.seconds(300)
    /// `spool_directory`
    package internal(set) var spoolDirectory: String?
    /// `spool_limit`, bytes.
    package internal(set) var spoolLimit: Int64 = 1 << 30
    /// `batch_limit`
    package internal(set) var batchLimit = 256
    /// `queue_limit`
    package internal(set) var queueLimit = 8_192
    /// `queue_bytes`
    package internal(set) var queueBytes: Int64 = 64 << 20
    /// `dead_letter_limit`
    package internal(set) var deadLetterLimit = 100_000
    /// `retention`
    package internal(set) var retention = Duration.seconds(400 * 86_400)
    /// `session_retention`
    package internal(set) var sessionRetention = Duration.seconds(30 * 86_400)
    /// `erase_after`
    package internal(set) var eraseAfter = Duration.seconds(30 * 86_400)
    /// `log_level`
    package internal(set) var logLevel = LogLevel.info
    /// `log_format`; nil: text on a terminal, else JSON.
    package internal(set) var logFormat: LogFormat?
    /// `shutdown_grace`
    package internal(set) var shutdownGrace = Duration.seconds(30)

    /// Every setting in the order of the documentation.
    package internal(set) var entries: [Entry] = []

    /// Where the value in force of a setting comes from.
    package func origin(of key: SettingKey) -> SettingOrigin {
        entries.first { $0.key == key }?.origin ?? .unset
    }

    /// The setting as an error names it, so that one knows where to correct it: `SIWAD_LISTEN`, `--listen`, or the line.
    package func name(of key: SettingKey) -> String {
        origin(of: key).name(of: key)
    }

    /// An error about a value that only its user can judge.
    package func problem(_ key: SettingKey, _ cause: String) -> SettingsError {
        SettingsError(
            problems: ["\(name(of: key)): \(cause)"],
            entries: entries.map { entry in
                var entry = entry
                if entry.key == key { entry.problem = .malformed }
                return entry
            }
        )
    }
}
