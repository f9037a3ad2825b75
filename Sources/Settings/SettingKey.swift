import AppleTokens
import Telemetry

/// A setting of siwad. The raw value is its key in a configuration file; the names of its flag and its environment variable
/// follow from it.
///
/// To add a setting, add a case with its ``declaration`` here and a property that reads it to ``Configuration``. Flag,
/// environment variable, file key, help, the output of `siwad config` and ``ConfigurationReference`` follow from the
/// declaration.
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
    case appleURL = "apple_url"
    case clockLeeway = "clock_leeway"
    case spoolDirectory = "spool_directory"
    case spoolLimit = "spool_limit"
    case batchLimit = "batch_limit"
    case queueLimit = "queue_limit"
    case queueBytes = "queue_bytes"
    case deadLetterLimit = "dead_letter_limit"
    case retention
    case sessionRetention = "session_retention"
    case deliveryRetention = "delivery_retention"
    case eraseAfter = "erase_after"
    case effects
    case sealingKeys = "sealing_keys"
    case deliveryAllow = "delivery_allow"
    case deliveryCA = "delivery_ca"
    case deliveryProxy = "delivery_proxy"
    case deliveryConcurrency = "delivery_concurrency"
    case appleKeys = "apple_keys"
    case clientSecretLifetime = "client_secret_lifetime"
    case logLevel = "log_level"
    case logFormat = "log_format"
    case shutdownGrace = "shutdown_grace"

    /// The type, the value where no source sets one, as a user would write it, and the meaning in one line of Markdown.
    var declaration: (type: SettingType, defaultText: String?, meaning: String) {
        switch self {
        case .databaseURL:
            (
                .conninfo,
                nil,
                "libpq URI or connection string; without it `DATABASE_URL`, then libpq's `PG*` variables are used"
            )
        case .databaseConnections:
            (.count(2...100), "4", "maximum number of connections to PostgreSQL; at least 2, with a spool 3")
        case .apps:
            (
                .apps,
                nil,
                "`TEAMID/primary.app.id`, further client ids of the group after `+`, groups separated by commas"
            )
        case .listen: (.address, "127.0.0.1:8080", "address of the notification endpoint")
        case .notificationPath: (.urlPath, "/apple/notifications", "path of the notification endpoint")
        case .tlsCertificate:
            (
                .line,
                nil,
                "PEM file with the certificate chain of the notification endpoint, for TLS 1.2 or later; read again "
                    + "when it changes"
            )
        case .tlsKey: (.line, nil, "PEM file with the certificate's private key; read again when it changes")
        case .operationsListen: (.address, "127.0.0.1:9090", "address of `/livez`, `/readyz` and `/metrics`")
        case .keysURL:
            (
                .url,
                "https://appleid.apple.com/auth/keys",
                "Apple's key set: `https:`, `file:`, or `http:` to a loopback address"
            )
        case .keysRefresh:
            (.duration(.milliseconds(100)...day * 30), "1h", "time between two background fetches of the key set")
        case .keysRefreshFloor:
            (.duration(.zero...day), "60s", "unknown key ids may cause one more fetch after this time")
        case .keysRefreshBurst: (.count(1...1_000), "5", "fetches in a row that unknown key ids may cause")
        case .keysMaximumAge:
            (
                .duration(.seconds(1)...century),
                "30d",
                "keys that no fetch confirmed for this long are no longer trusted"
            )
        case .issuer: (.url, "https://appleid.apple.com", "required value of a notification's `iss`")
        case .appleURL:
            (
                .url,
                "https://appleid.apple.com",
                "base of Apple's endpoints for sign-in: `https:`, or `http:` to a loopback address, without a path"
            )
        case .clockLeeway: (.duration(.zero...day), "5m", "allowed difference between Apple's clock and yours")
        case .spoolDirectory:
            (
                .line,
                nil,
                "where notifications wait while PostgreSQL is unavailable or slow; one directory for each siwad. "
                    + "Without it: 503"
            )
        case .spoolLimit:
            (
                .size(1...Int64.max),
                "1GiB",
                "maximum size of the spool; above it 503. Dead letters use a tenth of it at most"
            )
        case .batchLimit: (.count(1...10_000), "256", "notifications in one transaction")
        case .queueLimit: (.count(1...1_000_000), "8192", "notifications waiting for a transaction; above it 503")
        case .queueBytes:
            // The lower bound is the largest request body.
            (
                .size(128 << 10...1 << 40),
                "64MiB",
                "bytes of waiting notifications, including those in a transaction; above it 503"
            )
        case .deadLetterLimit:
            (
                .count(0...1_000_000_000),
                "100000",
                "open dead letters per reason; above it 503. For `keys-unavailable`, which any client can cause, "
                    + "never more than 1,000"
            )
        case .retention:
            (.duration(day...century), "400d", "notifications are deleted after this time, one month at a time")
        case .sessionRetention:
            (.duration(.zero...century), "30d", "ended and expired sessions are deleted after this time")
        case .deliveryRetention:
            (
                .duration(.zero...century), "30d",
                "delivered and discarded changes of an endpoint are deleted after this time"
            )
        case .eraseAfter:
            (
                .duration(.zero...century),
                "30d",
                "address and tokens are erased this long after the deletion of an Apple Account"
            )
        case .effects:
            (
                .word(EffectsMode.self),
                "on",
                "`on` or `off`; off: this daemon neither publishes changes nor delivers them"
            )
        case .deliveryAllow:
            (
                .addressRanges,
                nil,
                "addresses that are not public and may be called for endpoints, also by `http:`; such as `10.1.0.0/16`, "
                    + "separated by commas"
            )
        case .deliveryCA:
            (.line, nil, "PEM file with authorities of endpoints' certificates, in addition to the system's")
        case .deliveryProxy:
            (.url, nil, "`http://host:port` of a proxy (CONNECT) for the connections to endpoints")
        case .deliveryConcurrency:
            (
                .count(1...10_000),
                "256",
                "requests to endpoints at the same time; each endpoint always has at least one"
            )
        case .sealingKeys:
            (
                .sealingKeys,
                nil,
                "a line `NAME:BASE64` for each key that seals secrets in the database: the first seals, all open; "
                    + "`siwad sealing new-key` prints one. The same on all daemons"
            )
        case .appleKeys:
            (
                .appleKeys,
                nil,
                "keys of your developer teams for `siwad client-secret`: `TEAMID/KEYID=FILE`, or "
                    + "`TEAMID/primary.app.id/KEYID=FILE` for one app, separated by commas; the files are read again at each use"
            )
        case .clientSecretLifetime:
            (
                .duration(.seconds(60)...ClientSecret.longestLifetime),
                "5m",
                "how long a client secret is valid"
            )
        case .logLevel:
            (.word(LogLevel.self), "info", "`trace`, `debug`, `info`, `notice`, `warning`, `error` or `critical`")
        case .logFormat: (.word(LogFormat.self), nil, "`text` or `json`; without it `text` on a terminal, else `json`")
        case .shutdownGrace:
            (
                .duration(.zero...day),
                "30s",
                "maximum time of a shutdown; up to a third of it lets load balancers notice"
            )
        }
    }
}

private let day = Duration.seconds(86_400)
let century = day * 36_500

extension SettingKey {
    package static let environmentPrefix = "SIWAD_"

    /// `SIWAD_DATABASE_URL`
    package var environmentName: String { Self.environmentPrefix + rawValue.uppercased() }

    /// The variable that names a file with the value, such as `SIWAD_DATABASE_URL_FILE`. Only secrets have one.
    package var environmentFileName: String? { isSecret ? environmentName + "_FILE" : nil }

    /// The credential of systemd with the value, such as `database-url`. Only secrets have one.
    var credentialName: String? { isSecret ? String(flag.dropFirst(2)) : nil }

    /// `--database-url`
    package var flag: String { "--" + String(rawValue.map { $0 == "_" ? "-" : $0 }) }

    /// False for a key, which would appear in the list of processes.
    package var hasFlag: Bool { self != .sealingKeys }

    /// The meaning in one line of plain text.
    package var meaning: String { declaration.meaning.filter { $0 != "`" } }

    package var defaultText: String? { declaration.defaultText }

    /// True if the value is never printed and may come from a file or a credential.
    package var isSecret: Bool { [.databaseURL, .sealingKeys].contains(self) }

    /// A value without its password, for a command in a message. What else may be secret is masked, so that the command fails
    /// instead of using another database.
    package func withoutPassword(_ text: String) -> String {
        let password = "password=\(Redaction.mask)"
        let parts = [" \(password)", "\(password) ", "\(password)&", "&\(password)", "?\(password)"]
        let open = declaration.type.redacted(text).replacing(":\(Redaction.mask)@", with: "@")
        return parts.reduce(open) { $0.replacing($1, with: "") }
    }

    /// True if `siwad serve` needs a value. The database may be named in other variables, so it is not required.
    package var isRequired: Bool { self == .apps }

    /// True if SIGHUP applies a change; otherwise a restart does.
    package var isReloadable: Bool {
        [.apps, .issuer, .clockLeeway, .deliveryAllow, .deliveryCA, .sealingKeys, .logLevel].contains(self)
    }

    /// True if `siwad doctor` compares the value with that of a running daemon. It compares the database itself instead of its
    /// URL, and finds the daemon by its addresses. A command may have a log level and format of its own.
    package var isCompared: Bool {
        ![.databaseURL, .listen, .operationsListen, .logLevel, .logFormat].contains(self)
    }
}
