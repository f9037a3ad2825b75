package import NIOSSL

extension LocalhostCertificate {
    /// The settings of a server with this certificate.
    package static func serverContext() throws -> NIOSSLContext {
        try NIOSSLContext(
            configuration: .makeServerConfiguration(
                certificateChain: NIOSSLCertificate.fromPEMBytes(Array(pem.utf8)).map { .certificate($0) },
                privateKey: .privateKey(.init(bytes: Array(key.utf8), format: .pem))
            )
        )
    }
}
