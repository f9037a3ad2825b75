import AppleTokens
import SignIn
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
    case applicationListen = "application_listen"
    case applicationSocketMode = "application_socket_mode"
    case applicationTokens = "application_tokens"
    case applicationTLSCertificate = "application_tls_certificate"
    case applicationTLSKey = "application_tls_key"
    case codeExchange = "code_exchange"
    case nonce
    case identityTokenAge = "identity_token_age"
    case keepNames = "keep_names"
    case signInRetention = "sign_in_retention"
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
        case .issuer: (.issuer, "https://appleid.apple.com", "required value of a notification's `iss`")
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
                .size(1 << 10...1 << 50),
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
                    + "never more than 1,000; no limit for `store-rejected`, which PostgreSQL refuses otherwise"
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
            (.proxy, nil, "`http://host:port` of a proxy (CONNECT) for the connections to endpoints")
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
                "keys of your developer teams, with which client secrets are signed: `TEAMID/KEYID=FILE`, or "
                    + "`TEAMID/primary.app.id/KEYID=FILE` for one app, separated by commas; the files are read again at a "
                    + "reload. Without it, codes are refused. Needs `SIWAD_SEALING_KEYS`"
            )
        case .clientSecretLifetime:
            (
                .duration(.seconds(60)...ClientSecret.longestLifetime),
                "5m",
                "how long a client secret is valid"
            )
        case .applicationListen:
            (
                .applicationAddress,
                nil,
                "address of the endpoint at which your backends sign people in; without it there is none. "
                    + "`host:port` needs `SIWAD_APPLICATION_TOKENS`, and TLS if the address is not a loopback address"
            )
        case .applicationSocketMode: (.fileMode, "0660", "permissions of the Unix socket of the application endpoint")
        case .applicationTokens:
            (
                .callers,
                nil,
                "a line `NAME SHA256HEX [client.id …]` for each token of a backend, with the client ids that it may act for; "
                    + "`siwad application-token` prints one"
            )
        case .applicationTLSCertificate:
            (
                .line,
                nil,
                "PEM file with the certificate chain of the application endpoint, for TLS 1.2 or later; read again when it "
                    + "changes"
            )
        case .applicationTLSKey:
            (.line, nil, "PEM file with that certificate's private key; read again when it changes")
        case .codeExchange:
            (
                .word(CodeExchange.self),
                "preferred",
                "`preferred`: people sign in even if Apple's token endpoint is unavailable; `required`: only with a refresh "
                    + "token"
            )
        case .nonce:
            (
                .word(NoncePolicy.self),
                "required",
                "`issued`: only nonces from siwad; `required`: any nonce; `optional`: none is needed where Apple sends none"
            )
        case .identityTokenAge:
            (
                .duration(.seconds(1)...day),
                "10m",
                "an identity token is accepted this long after Apple issued it; Apple's own limit is a day"
            )
        case .keepNames:
            (.boolean, "true", "whether names, which Apple sends once, are stored and returned by later sign-ins")
        case .signInRetention: (.duration(day * 2...century), "30d", "records of sign-ins are deleted after this time")
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

    /// False for keys and tokens, which would appear in the list of processes.
    package var hasFlag: Bool { ![.sealingKeys, .applicationTokens].contains(self) }

    /// The meaning in one line of plain text.
    package var meaning: String { declaration.meaning.filter { $0 != "`" } }

    package var defaultText: String? { declaration.defaultText }

    /// True if the value is never printed and may come from a file or a credential.
    package var isSecret: Bool { [.databaseURL, .sealingKeys, .applicationTokens].contains(self) }

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
        [
            .apps, .issuer, .clockLeeway, .deliveryAllow, .deliveryCA, .sealingKeys, .appleKeys, .clientSecretLifetime,
            .applicationTokens, .codeExchange, .nonce, .identityTokenAge, .keepNames, .logLevel,
        ].contains(self)
    }

    /// True if `siwad doctor` compares the value with that of a running daemon. It compares the database itself instead of its
    /// URL, and finds the daemon by its addresses. A command may have a log level and format of its own.
    package var isCompared: Bool {
        ![.databaseURL, .listen, .operationsListen, .applicationListen, .logLevel, .logFormat].contains(self)
    }
}
