import AppleTokens
import Effects
import Ingest
import Listening
import Settings
import SignInFlow
import Telemetry
import UnixSignals

struct Reloading: Sendable {
    let sources: SettingsSources
    let signals: UnixSignalsSequence

    /// From here on SIGHUP does not end the process; the daemon handles it once it runs.
    init(from sources: SettingsSources) async {
        self.sources = sources
        signals = await UnixSignalsSequence(trapping: .sighup)
    }
}

extension Daemon {
    /// Applies the reloadable settings and the TLS files. A malformed configuration changes nothing.
    func reload(from sources: SettingsSources) async {
        reloadCertificates()
        let new: Configuration
        let policy: NotificationPolicy
        let signInPolicy: SignInPolicy?
        do {
            new = try Configuration(from: sources)
            try new.checkServing()
            try new.check(reloadedBy: configuration)
            try checkForRestart(new)
            policy = try new.policy()
            signInPolicy = try signIn != nil || new.signsIn ? new.signInPolicy() : nil
            if dispatcher != nil { try new.checkDeliveryAuthorities() }
        } catch {
            log.error("the configuration was not re-read, the old one stays in force", ["error": "\(error)"])
            return
        }
        Log.setLevel(new.logLevel)
        state.reloaded(new, ignoring: signIn == nil ? [.appleKeys] : [])
        let proxy = configuration.deliveryProxy
        if let signInPolicy { signIn?.service.replace(policy: signInPolicy) }
        new.warnOfMistakes(in: log)
        dispatcher?.replace(Dispatcher.Connections(new, proxy: proxy, resolver, on: loops))
        if policy != intake.policy {
            metrics.lastNotification.keep(policy.audiences.groups.map(\.app.rawValue))
            intake.replace(policy: policy)
        }
        do {
            // Also unchanged ones: an operator may have removed one by mistake.
            try await pool.addClients(of: policy.audiences)
        } catch {
            log.warning("the apps are written to the database when it is reachable", ["error": "\(error)"])
            prepareWithNextConnection()
        }
        let ignored = changes(in: new).map(\.rawValue).joined(separator: ", ")
        if ignored.isEmpty {
            log.notice("configuration re-read")
        } else {
            log.warning("configuration re-read; these settings take effect with a restart", ["settings": ignored])
        }
    }

    /// Checks what only a restart applies: a mistake is found now, and not when siwad does not start again.
    private func checkForRestart(_ new: Configuration) throws {
        _ = try new.keySetURL()
        _ = try new.appleBase()
        if let files = new.tls, files != configuration.tls {
            _ = try ServerCertificates(certificateFile: files.certificate, keyFile: files.key)
        }
        if let files = new.applicationTLS, files != configuration.applicationTLS {
            _ = try ServerCertificates(certificateFile: files.certificate, keyFile: files.key, settings: .application)
        }
    }

    private func reloadCertificates() {
        for certificates in [certificates, signIn?.certificates].compactMap(\.self) {
            switch certificates.reloadIfChanged() {
            case .none: break
            case .loaded: log.notice("certificate re-read")
            case .kept(let error):
                log.error("certificate not re-read, the old one stays in use", ["error": error.message])
            }
        }
        if let certificates { metrics.certificateExpiry.set(Double(certificates.expiry)) }
        if let signIn, let certificates = signIn.certificates {
            signIn.certificateExpiry.set(Double(certificates.expiry))
        }
    }

    /// Settings that changed since the start and need a restart.
    private func changes(in new: Configuration) -> [SettingKey] {
        // Without sign-ins at the start there is nothing that could use keys of Apple's.
        let mustRestart = signIn == nil && new.signsIn
        return zip(configuration.entries, new.entries).compactMap { old, entry in
            // The text of the database shows everything but the password.
            let isSame = old.text == entry.text && (old.key != .databaseURL || configuration.database == new.database)
            let isApplied = old.key.isReloadable && !(old.key == .appleKeys && mustRestart)
            return isSame || isApplied ? nil : old.key
        }
    }
}
