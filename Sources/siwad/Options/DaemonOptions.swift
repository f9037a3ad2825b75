import ArgumentParser
import Settings

/// Every setting of the daemon as a flag; `--log-level` is among the common options.
struct DaemonOptions: ParsableArguments {
    @Option(name: .customLong("database-url"), help: Self.help(.databaseURL))
    var databaseURL: String?
    @Option(name: .customLong("database-connections"), help: Self.help(.databaseConnections))
    var databaseConnections: String?
    @Option(name: .customLong("apps"), help: Self.help(.apps))
    var apps: String?
    @Option(name: .customLong("listen"), help: Self.help(.listen))
    var listen: String?
    @Option(name: .customLong("notification-path"), help: Self.help(.notificationPath))
    var notificationPath: String?
    @Option(name: .customLong("tls-certificate"), help: Self.help(.tlsCertificate))
    var tlsCertificate: String?
    @Option(name: .customLong("tls-key"), help: Self.help(.tlsKey))
    var tlsKey: String?
    @Option(name: .customLong("operations-listen"), help: Self.help(.operationsListen))
    var operationsListen: String?
    @Option(name: .customLong("keys-url"), help: Self.help(.keysURL))
    var keysURL: String?
    @Option(name: .customLong("keys-refresh"), help: Self.help(.keysRefresh))
    var keysRefresh: String?
    @Option(name: .customLong("keys-refresh-floor"), help: Self.help(.keysRefreshFloor))
    var keysRefreshFloor: String?
    @Option(name: .customLong("keys-refresh-burst"), help: Self.help(.keysRefreshBurst))
    var keysRefreshBurst: String?
    @Option(name: .customLong("keys-maximum-age"), help: Self.help(.keysMaximumAge))
    var keysMaximumAge: String?
    @Option(name: .customLong("issuer"), help: Self.help(.issuer))
    var issuer: String?
    @Option(name: .customLong("clock-leeway"), help: Self.help(.clockLeeway))
    var clockLeeway: String?
    @Option(name: .customLong("spool-directory"), help: Self.help(.spoolDirectory))
    var spoolDirectory: String?
    @Option(name: .customLong("spool-limit"), help: Self.help(.spoolLimit))
    var spoolLimit: String?
    @Option(name: .customLong("batch-limit"), help: Self.help(.batchLimit))
    var batchLimit: String?
    @Option(name: .customLong("queue-limit"), help: Self.help(.queueLimit))
    var queueLimit: String?
    @Option(name: .customLong("queue-bytes"), help: Self.help(.queueBytes))
    var queueBytes: String?
    @Option(name: .customLong("dead-letter-limit"), help: Self.help(.deadLetterLimit))
    var deadLetterLimit: String?
    @Option(name: .customLong("retention"), help: Self.help(.retention))
    var retention: String?
    @Option(name: .customLong("session-retention"), help: Self.help(.sessionRetention))
    var sessionRetention: String?
    @Option(name: .customLong("erase-after"), help: Self.help(.eraseAfter))
    var eraseAfter: String?
    @Option(name: .customLong("log-format"), help: Self.help(.logFormat))
    var logFormat: String?
    @Option(name: .customLong("shutdown-grace"), help: Self.help(.shutdownGrace))
    var shutdownGrace: String?

    /// The settings that are given.
    var flags: [SettingKey: String] {
        let all: [(SettingKey, String?)] = [
            (.databaseURL, databaseURL), (.databaseConnections, databaseConnections), (.apps, apps),
            (.listen, listen), (.notificationPath, notificationPath), (.tlsCertificate, tlsCertificate),
            (.tlsKey, tlsKey), (.operationsListen, operationsListen), (.keysURL, keysURL),
            (.keysRefresh, keysRefresh), (.keysRefreshFloor, keysRefreshFloor),
            (.keysRefreshBurst, keysRefreshBurst), (.keysMaximumAge, keysMaximumAge), (.issuer, issuer),
            (.clockLeeway, clockLeeway), (.spoolDirectory, spoolDirectory), (.spoolLimit, spoolLimit),
            (.batchLimit, batchLimit), (.queueLimit, queueLimit), (.queueBytes, queueBytes),
            (.deadLetterLimit, deadLetterLimit), (.retention, retention), (.sessionRetention, sessionRetention),
            (.eraseAfter, eraseAfter),
            (.logFormat, logFormat), (.shutdownGrace, shutdownGrace),
        ]
        return Dictionary(uniqueKeysWithValues: all.compactMap { key, text in text.map { (key, $0) } })
    }

    private static func help(_ key: SettingKey) -> ArgumentHelp {
        var text = key.meaning
        if let defaultText = key.defaultText { text += " (default: \(defaultText))" }
        return ArgumentHelp(stringLiteral: text)
    }
}
