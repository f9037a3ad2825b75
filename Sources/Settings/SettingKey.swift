/// A setting of siwad. The raw value is its name in a configuration file; environment and flag names follow from it.
package enum SettingKey: String, CaseIterable, Sendable, Hashable {
    case databaseURL = "database_url"
    case databaseConnections = "database_connections"
    case apps
    case listen
    case notificationPath = "notification_path"
    case tlsCertificate = "tls_certificate"
    case tlsKey = "tls_key"
    case operationsListen = "operations_listen"
    case keysURL = "keys_url"
    case keysRefresh = "keys_refresh"
    case keysRefreshFloor = "keys_refresh_floor"
    case keysRefreshBurst = "keys_refresh_burst"
    case keysMaximumAge = "keys_maximum_age"
    case issuer
    case clockLeeway = "clock_leeway"
    case spoolDirectory = "spool_directory"
    case spoolLimit = "spool_limit"
    case batchLimit = "batch_limit"
    case queueLimit = "queue_limit"
    case queueBytes = "queue_bytes"
    case deadLetterLimit = "dead_letter_limit"
    case retention
    case sessionRetention = "session_retention"
    case eraseAfter = "erase_after"
    case logLevel = "log_level"
    case logFormat = "log_format"
    case shutdownGrace = "shutdown_grace"

    /// What every environment name of ours starts with.
    package static let environmentPrefix = "SIWAD_"

    /// The name in the environment: `SIWAD_DATABASE_URL`.
    package var environmentName: String {
        Self.environmentPrefix + rawValue.uppercased()
    }

    /// The environment name of a file that holds the value: `SIWAD_DATABASE_URL_FILE`. Secrets only.
    package var environmentFileName: String? {
        isSecret ? environmentName + "_FILE" : nil
    }

    /// The name as a flag: `--database-url`.
    package var flag: String {
        "--" + String(rawValue.map { $0 == "_" ? "-" : $0 })
    }

    /// Whether `siwad serve` can't do without it. A database may be named elsewhere too.
    package var isRequired: Bool {
        self == .apps
    }

    /// Whether the value must never be printed as it is, and may be given as a file.
    package var isSecret: Bool {
        self == .databaseURL
    }
}

extension SettingKey {
    /// What the setting does, in one line.
    package var meaning: String {
        switch self {
        case .databaseURL: "libpq URI or conninfo; else DATABASE_URL, else libpq's PG* variables"
        case .databaseConnections: "at most this many connections to PostgreSQL, at least 2, with a spool 3"
        case .apps: "apps served: TEAMID/primary.app.id, further client ids after +, comma-separated"
        case .listen: "address of the notification endpoint"
        case .notificationPath: "path of the notification endpoint"
        case .tlsCertificate: "PEM certificate chain for the notification endpoint; re-read when it changes"
        case .tlsKey: "PEM private key of the certificate; re-read when it changes"
        case .operationsListen: "address of /livez, /readyz and /metrics"
        case .keysURL: "Apple's key set: https:, file:, or http: to a loopback address"
        case .keysRefresh: "time between two background fetches of the key set"
        case .keysRefreshFloor: "after this, unknown key ids may cause one more fetch of the key set"
        case .keysRefreshBurst: "fetches that unknown key ids may cause in a row"
        case .keysMaximumAge: "kept keys that no fetch confirmed for this long are no longer trusted"
        case .issuer: "the issuer that notifications must name"
        case .clockLeeway: "how far Apple's clock and ours may differ"
        case .spoolDirectory: "where notifications wait while PostgreSQL is away; none: answer 503 then"
        case .spoolLimit: "at most this much in the spool"
        case .batchLimit: "notifications in one transaction"
        case .queueLimit: "notifications waiting for a transaction; above it 503"
        case .queueBytes: "bytes waiting for a transaction; above it 503"
        case .deadLetterLimit: "open dead letters per reason; above it 503"
        case .retention: "notifications older than this go, a partition at a time"
        case .sessionRetention: "sessions that ended or expired are deleted after this"
        case .eraseAfter: "so long after the deletion of an Apple Account its address and tokens go"
        case .logLevel: "trace, debug, info, notice, warning, error or critical"
        case .logFormat: "text or json; by default text on a terminal, else json"
        case .shutdownGrace: "how long open requests may take to finish at shutdown"
        }
    }

    /// The value in force when nothing sets it, as one would write it; nil where there is none.
    package var defaultText: String? {
        switch self {
        case .databaseURL, .apps, .tlsCertificate, .tlsKey, .spoolDirectory, .logFormat: nil
        case .databaseConnections: "4"
        case .listen: "127.0.0.1:8080"
        case .notificationPath: "/apple/notifications"
        case .operationsListen: "127.0.0.1:9090"
        case .keysURL: "https://appleid.apple.com/auth/keys"
        case .keysRefresh: "1h"
        case .keysRefreshFloor: "60s"
        case .keysRefreshBurst: "5"
        case .keysMaximumAge: "30d"
        case .issuer: "https://appleid.apple.com"
        case .clockLeeway: "5m"
        case .spoolLimit: "1GiB"
        case .batchLimit: "256"
        case .queueLimit: "8192"
        case .queueBytes: "64MiB"
        case .deadLetterLimit: "100000"
        case .retention: "400d"
        case .sessionRetention: "30d"
        case .eraseAfter: "30d"
        case .logLevel: "info"
        case .shutdownGrace: "30s"
        }
    }
}
