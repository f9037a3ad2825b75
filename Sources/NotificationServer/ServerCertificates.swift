import Glibc
import NIOSSL
import Synchronization

/// The certificate chain and key of the notification endpoint, re-read when their files change.
package final class ServerCertificates: Sendable {
    /// What a look at the files led to.
    package enum Change: Sendable, Equatable {
        /// The files are the same.
        case none
        /// The new ones are in use.
        case loaded
        /// The files changed, but the old certificate stays in use.
        case kept(ServerError)
    }

    private struct State {
        var context: NIOSSLContext
        var expiry: Int64
        var stamp: FileStamp
    }

    private let certificateFile: String
    private let keyFile: String
    private let state: Mutex<State>

    /// Reads PEM files: the certificate with its chain, and its key.
    ///
    /// - Throws: `unreadableCertificate`, `keyMismatch`.
    package init(certificateFile: String, keyFile: String) throws(ServerError) {
        self.certificateFile = certificateFile
        self.keyFile = keyFile
        self.state = Mutex(try Self.load(certificateFile, keyFile))
    }

    /// When the certificate expires, in seconds since 1970.
    package var expiry: Int64 {
        state.withLock { $0.expiry }
    }

    /// For connections that begin now.
    var context: NIOSSLContext {
        state.withLock { $0.context }
    }

    /// Reads the files again if they have changed. A connection keeps what it began with.
    package func reloadIfChanged() -> Change {
        let stamp = FileStamp(certificateFile, keyFile)
        guard state.withLock({ $0.stamp != stamp }) else { return .none }
        do {
            let loaded = try Self.load(certificateFile, keyFile)
            state.withLock { $0 = loaded }
            return .loaded
        } catch {
            // Remembered, so that a bad pair is reported once and looked at again when it changes.
            state.withLock { $0.stamp = stamp }
            return .kept(error)
        }
    }

    private static func load(_ certificateFile: String, _ keyFile: String) throws(ServerError) -> State {
        // Before the content: a change in between is seen at the next look.
        let stamp = FileStamp(certificateFile, keyFile)
        let chain = try certificates(certificateFile)
        guard let leaf = chain.first else {
            throw ServerError(.unreadableCertificate, "\(certificateFile) (SIWAD_TLS_CERTIFICATE) holds no certificate")
        }
        let key = try privateKey(keyFile)
        var configuration = TLSConfiguration.makeServerConfiguration(
            certificateChain: chain.map { .certificate($0) },
            privateKey: .privateKey(key)
        )
        configuration.minimumTLSVersion = .tlsv12
        configuration.cipherSuiteValues = cipherSuites
        configuration.applicationProtocols = ["http/1.1"]
        do {
            let context = try NIOSSLContext(configuration: configuration)
            return State(context: context, expiry: Int64(leaf.notValidAfter), stamp: stamp)
        } catch {
            throw ServerError(
                .keyMismatch,
                "the key in \(keyFile) (SIWAD_TLS_KEY) does not fit the certificate in \(certificateFile) "
                    + "(SIWAD_TLS_CERTIFICATE); the file must begin with the server's own certificate"
            )
        }
    }

    /// Of TLS 1.2: only with forward secrecy and authenticated encryption (RFC 9325 §4.2). Those of TLS 1.3 are always on.
    private static let cipherSuites: [NIOTLSCipher] = [
        .TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, .TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
        .TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384, .TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
        .TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256, .TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
    ]

    private static func certificates(_ file: String) throws(ServerError) -> [NIOSSLCertificate] {
        try checkReadable(file, "SIWAD_TLS_CERTIFICATE")
        do {
            return try NIOSSLCertificate.fromPEMFile(file)
        } catch {
            throw ServerError(
                .unreadableCertificate,
                "\(file) (SIWAD_TLS_CERTIFICATE) is not a PEM file of certificates"
            )
        }
    }

    private static func privateKey(_ file: String) throws(ServerError) -> NIOSSLPrivateKey {
        try checkReadable(file, "SIWAD_TLS_KEY")
        do {
            return try NIOSSLPrivateKey(file: file, format: .pem)
        } catch {
            throw ServerError(
                .unreadableCertificate,
                "\(file) (SIWAD_TLS_KEY) is not a PEM file of an unencrypted private key"
            )
        }
    }

    private static func checkReadable(_ file: String, _ setting: String) throws(ServerError) {
        guard access(file, R_OK) == 0 else {
            throw ServerError(
                .unreadableCertificate,
                "cannot read \(file) (\(setting)): \(String(cString: strerror(errno)))"
            )
        }
    }
}
