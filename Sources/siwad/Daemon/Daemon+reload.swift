import AppleTokens
import Ingest
import NotificationServer
import Settings
import Telemetry
import UnixSignals

/// SIGHUP from here on, and what is read at it.
struct Reloading: Sendable {
    fileprivate let sources: SettingsSources
    fileprivate let signals: UnixSignalsSequence

    /// From here on a SIGHUP ends nothing; it is followed once the daemon runs.
    init(from sources: SettingsSources) async {
        self.sources = sources
        signals = await UnixSignalsSequence(trapping: .sighup)
    }
}

/// What SIGHUP does.
extension Daemon {
    /// The settings that take effect without a restart.
    private static let reloadable: Set<SettingKey> = [.apps, .issuer, .clockLeeway, .logLevel]

    /// Reads the configuration anew at every SIGHUP, until it is cancelled.
    func reloadAtSignal(_ reloading: Reloading) async {
        for await _ in reloading.signals {
            await reload(from: reloading.sources)
        }
    }

    /// Takes over the apps, the log level and the TLS files. What can't be read or makes no sense changes nothing.
    func reload(from sources: SettingsSources) async {
        reloadCertificates()
        let new: Configuration
        let policy: NotificationPolicy
        do {
            new = try Configuration(from: sources)
            policy = try new.policy()
        } catch {
            log.error("the configuration was not re-read, the old one stays in force", ["error": "\(error)"])
            return
        }
        Log.setLevel(new.logLevel)
        if policy != intake.policy {
            metrics.lastNotification.admit(policy.audiences.groups.map(\.app.rawValue))
            intake.replace(policy: policy)
            await tellDatabase()
        }
        let ignored = changes(in: new).map(\.rawValue).joined(separator: ", ")
        if ignored.isEmpty {
            log.notice("configuration re-read")
        } else {
            log.warning("configuration re-read; these settings take effect with a restart", ["settings": ignored])
        }
    }

    private func tellDatabase() async {
        do {
            try await synchronizeClients()
        } catch {
            log.warning("the database is told of the changed apps when it is back", ["error": "\(error)"])
            prepareWithNextConnection()
        }
    }

    private func reloadCertificates() {
        guard let certificates else { return }
        switch certificates.reloadIfChanged() {
        case .none:
            break
        case .loaded:
            metrics.certificateExpiry.set(Double(certificates.expiry))
            log.notice("certificate re-read")
        case .kept(let error):
            log.error("certificate not re-read, the old one stays in use", ["error": error.message])
        }
    }

    /// Settings that changed since the start and need one.
    private func changes(in new: Configuration) -> [SettingKey] {
        zip(configuration.entries, new.entries).compactMap { old, entry in
            // Of the database its text tells everything but the password.
            let isSame = old.text == entry.text && (old.key != .databaseURL || configuration.database == new.database)
            return isSame || Self.reloadable.contains(old.key) ? nil : old.key
        }
    }
}
