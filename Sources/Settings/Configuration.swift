package import AppleTokens
package import Basics
package import JOSE
package import SignIn
package import Telemetry

/// Every setting of siwad with its value in force.
package struct Configuration: Sendable {
    package enum Database: Sendable, Equatable {
        /// A libpq URI or connection string; may hold a password.
        case conninfo(String)
        /// libpq's `PG*` variables. At least one that names a server or a database is set.
        case libpqEnvironment
        case notConfigured
    }

    package struct TLSFiles: Sendable, Equatable {
        package let certificate: String
        package let key: String
    }

    package struct Entry: Sendable, Equatable {
        package enum Problem: String, Sendable {
            case malformed
            case missing
        }

        package let key: SettingKey
        /// The value in force, without secrets; nil where there is none.
        package let text: String?
        package let origin: SettingOrigin
        /// Why there is no value in force although one is needed.
        package var problem: Problem?
    }

    package var database: Database {
        if let conninfo: String = optional(.databaseURL) { return .conninfo(conninfo) }
        return usesLibpqEnvironment ? .libpqEnvironment : .notConfigured
    }
    package var databaseConnections: Int { value(.databaseConnections) }
    package var apps: AudienceMap? { optional(.apps) }
    package var listen: HostAndPort { value(.listen) }
    package var notificationPath: String { value(.notificationPath) }
    package var tls: TLSFiles? { tlsFiles(.tlsCertificate, .tlsKey) }
    package var operationsListen: HostAndPort { value(.operationsListen) }
    /// Not checked here: `KeySetURL` decides which URLs are allowed.
    package var keysURL: String { value(.keysURL) }
    package var keysRefresh: Duration { value(.keysRefresh) }
    package var keysRefreshFloor: Duration { value(.keysRefreshFloor) }
    package var keysRefreshBurst: Int { value(.keysRefreshBurst) }
    package var keysMaximumAge: Duration { value(.keysMaximumAge) }
    package var issuer: String { value(.issuer) }
    /// Not checked here: `AppleURL` decides which URLs are allowed.
    package var appleURL: String { value(.appleURL) }
    package var clockLeeway: Duration { value(.clockLeeway) }
    package var spoolDirectory: String? { optional(.spoolDirectory) }
    package var spoolLimit: Int64 { value(.spoolLimit) }
    package var batchLimit: Int { value(.batchLimit) }
    package var queueLimit: Int { value(.queueLimit) }
    package var queueBytes: Int64 { value(.queueBytes) }
    package var deadLetterLimit: Int { value(.deadLetterLimit) }
    package var retention: Duration { value(.retention) }
    package var sessionRetention: Duration { value(.sessionRetention) }
    package var deliveryRetention: Duration { value(.deliveryRetention) }
    package var eraseAfter: Duration { value(.eraseAfter) }
    /// Whether the daemon publishes and delivers changes.
    package var effects: EffectsMode { value(.effects) }
    /// nil where secrets can't be sealed or opened.
    package var sealingKeys: SealingKeys? { optional(.sealingKeys) }
    package var deliveryAllow: [AddressRange] { optional(.deliveryAllow) ?? [] }
    package var deliveryCA: String? { optional(.deliveryCA) }
    package var deliveryProxy: String? { optional(.deliveryProxy) }
    package var deliveryConcurrency: Int { value(.deliveryConcurrency) }
    package var appleKeys: AppleKeys? { optional(.appleKeys) }
    package var clientSecretLifetime: Duration { value(.clientSecretLifetime) }
    /// nil: there is no application endpoint.
    package var applicationListen: ApplicationAddress? { optional(.applicationListen) }
    package var applicationSocketMode: UInt16 { value(.applicationSocketMode) }
    /// nil: callers need no token.
    package var applicationTokens: CallerDirectory? { optional(.applicationTokens) }
    package var applicationTLS: TLSFiles? { tlsFiles(.applicationTLSCertificate, .applicationTLSKey) }
    package var codeExchange: CodeExchange { value(.codeExchange) }
    package var noncePolicy: NoncePolicy { value(.nonce) }
    package var identityTokenAge: Duration { value(.identityTokenAge) }
    package var keepsNames: Bool { value(.keepNames) }
    package var signInRetention: Duration { value(.signInRetention) }
    package var logLevel: LogLevel { value(.logLevel) }
    /// nil: text on a terminal, else JSON.
    package var logFormat: LogFormat? { optional(.logFormat) }
    package var shutdownGrace: Duration { value(.shutdownGrace) }

    /// Every setting, in the order of the documentation.
    package private(set) var entries: [Entry] = []
    private var values: [SettingKey: any Sendable] = [:]
    private let usesLibpqEnvironment: Bool

    /// - Throws: An error that names every unknown key and every malformed value.
    package init(from sources: SettingsSources) throws(SettingsError) {
        let texts = SettingTexts(sources)
        var problems = texts.problems
        usesLibpqEnvironment = texts.hasLibpqEnvironment
        for key in SettingKey.allCases {
            let sourced = texts[key]
            var problem: Entry.Problem? = sourced == nil && key.isRequired ? .missing : nil
            values[key] = key.defaultValue
            do throws(MalformedValue) {
                if let sourced { values[key] = try sourced.value(of: key) }
            } catch {
                problem = .malformed
                if let sourced { problems.append(sourced.problem(of: key, error)) }
            }
            let text = (sourced?.text ?? key.defaultText).map(key.declaration.type.redacted)
            var origin = sourced?.origin ?? .unset
            if key == .databaseURL, sourced == nil, usesLibpqEnvironment { origin = .environment("PG*") }
            entries.append(Entry(key: key, text: text, origin: origin, problem: problem))
        }
        problems += combinationProblems
        guard problems.isEmpty else { throw SettingsError(problems: problems, entries: entries) }
    }

    /// The least number of connections that the daemon needs: one stores incoming notifications, one drains the spool, one
    /// serves everything else.
    package var leastDatabaseConnections: Int { origin(of: .spoolDirectory) == .unset ? 2 : 3 }

    package func origin(of key: SettingKey) -> SettingOrigin {
        entries.first { $0.key == key }?.origin ?? .unset
    }

    /// The setting as an error names it, so that the reader knows where to correct it: `SIWAD_LISTEN`, `--listen`, or the
    /// line of the file.
    package func name(of key: SettingKey) -> String {
        origin(of: key).name(of: key)
    }

    /// An error about a value that only the part of siwad that uses it can check.
    package func problem(_ key: SettingKey, _ cause: String) -> SettingsError {
        let entries = entries.map { entry in
            var entry = entry
            if entry.key == key { entry.problem = .malformed }
            return entry
        }
        return SettingsError(problems: ["\(name(of: key)): \(cause)"], entries: entries)
    }

    /// Four hexadecimal digits for each setting that is compared, in the order of the keys: equal for equal values.
    ///
    /// - Parameters:
    ///   - new: the configuration that SIGHUP read last.
    ///   - ignored: settings that were not taken from it.
    package func digest(reloading new: Configuration? = nil, ignoring ignored: Set<SettingKey> = []) -> String {
        SettingKey.allCases.filter(\.isCompared).map { key in
            ((key.isReloadable && !ignored.contains(key) ? new : nil) ?? self).digest(of: key)
        }.joined()
    }

    /// The settings in which two digests differ; nil if they are of different versions of siwad.
    package static func differences(_ one: String, _ other: String) -> [SettingKey]? {
        let keys = SettingKey.allCases.filter(\.isCompared)
        guard one.count == keys.count * digestLength, other.count == one.count else { return nil }
        return zip(keys, stride(from: 0, to: one.count, by: digestLength)).compactMap { key, start in
            one.dropFirst(start).prefix(digestLength) == other.dropFirst(start).prefix(digestLength) ? nil : key
        }
    }

    // MARK: - Private parts

    private static let digestLength = 4

    private func digest(of key: SettingKey) -> String {
        // The same value may be written in several ways.
        let text: String? =
            switch values[key] {
            case let apps as AudienceMap: "\(apps.groups.map { "\($0)" }.sorted())"
            case let number as any BinaryInteger: "\(number)"
            case let duration as Duration: "\(duration)"
            case let flag as Bool: "\(flag)"
            case let word as any RawRepresentable<String>: word.rawValue
            case let ranges as [AddressRange]: "\(ranges.map(\.description).sorted())"
            default: entries.first { $0.key == key }?.text
            }
        let hash = SHA256.digest(Array("\(key.rawValue)=\(text ?? "")".utf8).span)
        return hash.prefix(Self.digestLength / 2).hexadecimal
    }

    /// A setting that has a default. The type is the one that its declaration parses.
    private func value<Value>(_ key: SettingKey) -> Value {
        guard let value = values[key] as? Value else { preconditionFailure("\(key) is not declared as \(Value.self)") }
        return value
    }

    private func optional<Value>(_ key: SettingKey) -> Value? {
        guard let value = values[key] else { return nil }
        guard let value = value as? Value else { preconditionFailure("\(key) is not declared as \(Value.self)") }
        return value
    }

    private func tlsFiles(_ certificate: SettingKey, _ key: SettingKey) -> TLSFiles? {
        guard let certificate: String = optional(certificate), let key: String = optional(key) else { return nil }
        return TLSFiles(certificate: certificate, key: key)
    }

    /// Checks these settings for a daemon that runs with others. It listens where it does until a restart.
    ///
    /// - Throws: if its application endpoint is at a TCP address, and these settings name no caller.
    package func check(reloadedBy running: Configuration) throws(SettingsError) {
        guard case .tcp = running.applicationListen, origin(of: .applicationTokens) == .unset else { return }
        throw problem(
            .applicationTokens,
            "needed until a restart, because the application endpoint listens on a TCP address until then; keep the tokens, or "
                + "restart siwad"
        )
    }

    /// Checks what only siwad serve needs. Other commands read the same file, for operators who may not read every secret.
    ///
    /// - Throws: if applications are served at a TCP address, and no caller is named: a caller can be any program of the
    ///   machine or, beyond loopback, of the network.
    package func checkServing() throws(SettingsError) {
        guard case .tcp = applicationListen, origin(of: .applicationTokens) == .unset else { return }
        throw SettingsError(
            "\(name(of: .applicationListen)) is a TCP address, and \(SettingKey.applicationTokens.environmentName) is not set: "
                + "siwad application-token prints a line for it; a socket unix:/path needs none"
        )
    }

    private var combinationProblems: [String] {
        var problems: [String] = []
        if databaseConnections < leastDatabaseConnections, origin(of: .spoolDirectory) != .unset {
            problems.append(
                "\(name(of: .spoolDirectory)) needs \(SettingKey.databaseConnections.environmentName) to be at least "
                    + "\(leastDatabaseConnections): draining the spool takes a connection of its own"
            )
        }
        let pairs: [(certificate: SettingKey, key: SettingKey)] = [
            (.tlsCertificate, .tlsKey), (.applicationTLSCertificate, .applicationTLSKey),
        ]
        for (present, missing) in pairs + pairs.map({ (certificate: $0.key, key: $0.certificate) })
        where origin(of: present) != .unset && origin(of: missing) == .unset {
            problems.append("\(name(of: present)) needs \(missing.environmentName) too")
        }
        if case .tcp(let address) = applicationListen, !address.isLoopback,
            origin(of: .applicationTLSCertificate) == .unset
        {
            problems.append(
                "\(name(of: .applicationListen)) is not a loopback address: set "
                    + "\(SettingKey.applicationTLSCertificate.environmentName) and "
                    + "\(SettingKey.applicationTLSKey.environmentName), or listen on unix:/path"
            )
        }
        return problems
    }
}

extension SettingKey {
    fileprivate var defaultValue: (any Sendable)? {
        guard let defaultText else { return nil }
        do throws(MalformedValue) {
            return try declaration.type.parse(defaultText)
        } catch {
            preconditionFailure("the default of \(self) is malformed: \(error.advice)")
        }
    }
}

package enum EffectsMode: String, Sendable, CaseIterable {
    case on, off
}
