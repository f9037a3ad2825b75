import AppleTokens
import Ingest
import JOSE
import Listening
import NIOCore
import Postgres
import Settings
import SignIn
import SignInFlow
import Telemetry
import WebClient
import WebServer

/// The parts of the daemon that sign people in.
struct SignInParts: Sendable {
    let service: SignInService
    /// nil without TLS on the application endpoint.
    let certificates: ServerCertificates?
    /// Of the certificates.
    let certificateExpiry: Gauge
    private let apple: TokenEndpointClient

    /// Makes no connection.
    ///
    /// - Parameter onDatabaseError: called with each error that becomes the problem `database-unavailable`.
    /// - Throws: `SettingsError`, `ServerError`, `WebClientError`.
    init(
        _ configuration: Configuration,
        keys: KeyRing,
        pool: ConnectionPool,
        metrics: MetricsRegistry,
        log: Log,
        eventLoopGroup: any EventLoopGroup,
        onDatabaseError: @escaping @Sendable (PostgresError) -> Void = { _ in }
    ) throws {
        let policy = try configuration.signInPolicy()
        certificates = try configuration.applicationTLS.map { files throws(ServerError) in
            try ServerCertificates(certificateFile: files.certificate, keyFile: files.key, settings: .application)
        }
        let metrics = SignInMetrics(registry: metrics)
        certificateExpiry = metrics.certificateExpiry
        let apple = try TokenEndpointClient(
            url: try configuration.appleBase(),
            version: Version.current,
            eventLoopGroup: eventLoopGroup
        )
        self.apple = apple
        service = SignInService(
            policy: policy,
            keys: keys,
            exchanger: CodeExchanger(
                send: { await apple.send($0, budget: $1) },
                metrics: metrics,
                log: log
            ),
            pool: pool,
            metrics: metrics,
            log: log,
            onDatabaseError: onDatabaseError
        )
    }

    func close() async { await apple.close() }
}

extension Daemon {
    /// nil without an application endpoint.
    var applicationServer: NamedService? {
        guard let signIn, let address = configuration.applicationAddress else { return nil }
        let (state, configuration, service) = (state, configuration, signIn.service)
        let server = ApplicationServer(
            address: address,
            certificates: signIn.certificates,
            certificateExpiry: signIn.certificateExpiry,
            eventLoops: loops,
            log: log,
            callers: { state.current(configuration).applicationTokens },
            service: service,
            onRunning: { _ in state.applicationOpen.open() }
        )
        return NamedService("application", endedBy: { service.drain() }) {
            try await state.notificationsOpen.whenOpen { try await server.run() }
        }
    }
}

extension Configuration {
    fileprivate var applicationAddress: ApplicationServer.Address? {
        let setting = name(of: .applicationListen)
        switch applicationListen {
        case .unix(let path): return .socket(UnixSocket(path: path, mode: applicationSocketMode, setting: setting))
        case .tcp(let address):
            return .network(ListenAddress(host: address.host, port: address.port, setting: setting))
        case nil: return nil
        }
    }

    /// Client ids that callers may act for, but that are not configured, so that their requests are refused: a spelling mistake.
    var unknownClientsOfCallers: [String] {
        guard let audiences = apps else { return [] }
        let named = applicationTokens?.clients.map(\.rawValue) ?? []
        return named.filter { audiences.group(audience: $0) == nil }.sorted()
    }

    /// Logs settings that work, but probably not as they were meant.
    func warnOfMistakes(in log: Log) {
        let names = unknownClientsOfCallers.joined(separator: ", ")
        guard !names.isEmpty else { return }
        log.warning("SIWAD_APPLICATION_TOKENS names client ids that SIWAD_APPS lacks", ["client_ids": names])
    }

    /// True if this daemon serves an application endpoint, or trades codes that another daemon left.
    var signsIn: Bool { applicationListen != nil || appleKeys != nil }

    /// The settings of sign-ins. Reads the keys of Apple's.
    ///
    /// - Throws: `SettingsError` for a key file that can't be used, and for settings that don't fit together.
    func signInPolicy() throws -> SignInPolicy {
        if codeExchange == .required, appleKeys == nil {
            throw problem(.codeExchange, "required needs SIWAD_APPLE_KEYS, with which codes are traded")
        }
        if noncePolicy == .issued, sealingKeys == nil {
            throw problem(.nonce, "issued needs SIWAD_SEALING_KEYS, from which siwad derives the key of its nonces")
        }
        return try SignInPolicy(
            audiences: try audiences(),
            identity: IdentityPolicy(
                issuer: issuer,
                maximumAge: identityTokenAge,
                leeway: clockLeeway,
                nonce: noncePolicy
            ),
            exchange: codeExchange,
            keepsNames: keepsNames,
            sealingKeys: sealingKeys,
            secrets: try clientSecrets()
        )
    }

    /// The keys with which client secrets are signed; nil without any.
    func clientSecrets() throws(SettingsError) -> ClientSecrets? {
        guard let appleKeys else { return nil }
        guard sealingKeys != nil else {
            let cause = "it needs SIWAD_SEALING_KEYS to seal refresh tokens: siwad sealing new-key prints a line"
            throw problem(.appleKeys, cause)
        }
        var keys: [String: P256PrivateKey] = [:]
        do throws(AppleKeyFileError) {
            for entry in appleKeys.entries { keys[entry.file] = try AppleKeyFile.read(entry) }
        } catch {
            throw problem(.appleKeys, error.description)
        }
        let groups = try audiences().groups.map { group in
            let own = appleKeys.entries(for: group).compactMap { entry in
                keys[entry.file].map { ClientSecrets.Key(id: entry.keyID, key: $0) }
            }
            return (group.app, own)
        }
        return ClientSecrets(keys: Dictionary(uniqueKeysWithValues: groups), lifetime: clientSecretLifetime)
    }
}
