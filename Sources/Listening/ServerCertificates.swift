import Glibc
package import NIOSSL
import Synchronization
package import Telemetry

/// The certificate chain and key of an endpoint, reloaded when their files change.
package final class ServerCertificates: Sendable {
    package enum Change: Sendable, Equatable {
        case none
        case loaded
        /// The files changed, but the old certificate stays in use.
        case kept(ServerError)
    }

    private struct State {
        var context: NIOSSLContext
        var expiry: Int64
        var stamps: [[Int]?]
    }

    /// The names of the two settings, for error texts.
    package struct SettingNames: Sendable {
        let certificate: String
        let key: String

        package init(certificate: String = "SIWAD_TLS_CERTIFICATE", key: String = "SIWAD_TLS_KEY") {
            self.certificate = certificate
            self.key = key
        }
    }

    private let certificateFile: String
    private let keyFile: String
    private let names: SettingNames
    private let state: Mutex<State>

    /// Reads PEM files: the certificate with its chain, and its key.
    ///
    /// - Throws: `unreadableCertificate`, `keyMismatch`.
    package init(
        certificateFile: String,
        keyFile: String,
        settings names: SettingNames = SettingNames()
    ) throws(ServerError) {
        self.certificateFile = certificateFile
        self.keyFile = keyFile
        self.names = names
        self.state = Mutex(try Self.load(certificateFile, keyFile, names))
    }

    /// When the certificate expires, in seconds since 1970.
    package var expiry: Int64 {
        state.withLock { $0.expiry }
    }

    package var context: NIOSSLContext {
        state.withLock { $0.context }
    }

    /// Reads the files again if they have changed. Open connections keep their certificate.
    package func reloadIfChanged() -> Change {
        let stamps = [stamp(certificateFile), stamp(keyFile)]
        guard state.withLock({ $0.stamps != stamps }) else { return .none }
        do {
            let loaded = try Self.load(certificateFile, keyFile, names)
            state.withLock { $0 = loaded }
            return .loaded
        } catch {
            // Stored, so that an invalid pair is reported once and read again only when it changes.
            state.withLock { $0.stamps = stamps }
            return .kept(error)
        }
    }

    /// Looks for changed files until it is cancelled.
    package func watch(every interval: Duration, log: Log, onLoad: () -> Void = {}) async {
        // The sleep throws only when the server has ended.
        while (try? await Task.sleep(for: interval)) != nil {
            switch reloadIfChanged() {
            case .none:
                break
            case .loaded:
                onLoad()
                log.notice("certificate re-read")
            case .kept(let error):
                log.error("certificate not re-read, the old one stays in use", ["error": error.message])
            }
        }
    }

    private static func load(
        _ certificateFile: String,
        _ keyFile: String,
        _ names: SettingNames
    ) throws(ServerError) -> State {
        // Before the content, so that the next check notices a change between the two.
        let stamps = [stamp(certificateFile), stamp(keyFile)]
        let chain = try read(certificateFile, names.certificate, "a PEM file of certificates") {
            try NIOSSLCertificate.fromPEMFile($0)
        }
        guard let leaf = chain.first else {
            throw ServerError(.unreadableCertificate, "\(certificateFile) (\(names.certificate)) holds no certificate")
        }
        let key = try read(keyFile, names.key, "a PEM file of an unencrypted private key") {
            try NIOSSLPrivateKey(file: $0, format: .pem)
        }
        var configuration = TLSConfiguration.makeServerConfiguration(
            certificateChain: chain.map { .certificate($0) },
            privateKey: .privateKey(key)
        )
        configuration.minimumTLSVersion = .tlsv12
        configuration.cipherSuiteValues = cipherSuites
        configuration.applicationProtocols = ["http/1.1"]
        do {
            let context = try NIOSSLContext(configuration: configuration)
            return State(context: context, expiry: Int64(leaf.notValidAfter), stamps: stamps)
        } catch {
            throw ServerError(
                .keyMismatch,
                "the key in \(keyFile) (\(names.key)) does not match the certificate in \(certificateFile) "
                    + "(\(names.certificate)); the file must begin with the server's own certificate"
            )
        }
    }

    /// For TLS 1.2, only suites with forward secrecy and authenticated encryption (RFC 9325 §4.2). The suites of TLS 1.3 are
    /// always enabled.
    private static let cipherSuites: [NIOTLSCipher] = [
        .TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, .TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
        .TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384, .TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
        .TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256, .TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
    ]

    private static func read<Content>(
        _ file: String,
        _ setting: String,
        _ kind: String,
        _ parse: (String) throws -> Content
    ) throws(ServerError) -> Content {
        guard access(file, R_OK) == 0 else {
            let code = errno
            let step =
                switch code {
                case ENOENT, ENOTDIR, ENAMETOOLONG: "; check the path"
                case EACCES, EPERM: "; let this user read it"
                default: ""
                }
            let reason = String(cString: strerror(code))
            throw ServerError(.unreadableCertificate, "cannot read \(file) (\(setting)): \(reason)\(step)")
        }
        do {
            return try parse(file)
        } catch {
            throw ServerError(.unreadableCertificate, "\(file) (\(setting)) is not \(kind)")
        }
    }
}

/// Identifies one version of a file's content and permissions; nil if there is no such file.
///
/// The time of the last change of the inode (ctime) is part of it: only that one changes with the permissions, and no program
/// can set it back.
private func stamp(_ path: String) -> [Int]? {
    var status = stat()
    guard stat(path, &status) == 0 else { return nil }
    return [
        Int(status.st_ino), status.st_size, status.st_mtim.tv_sec, status.st_mtim.tv_nsec, status.st_ctim.tv_sec,
        status.st_ctim.tv_nsec,
    ]
}
