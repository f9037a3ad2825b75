import Glibc
import Listening
import NIOCore
import NIOSSL
import Telemetry
import TestSupport
import Testing

@testable import NotificationServer

@Suite("TLS", .timeLimit(.minutes(5)))
struct TLSTests {
    private static func client(maximum: TLSVersion? = nil) throws -> NIOSSLContext {
        var configuration = TLSConfiguration.makeClientConfiguration()
        configuration.certificateVerification = .none
        configuration.minimumTLSVersion = .tlsv1
        configuration.maximumTLSVersion = maximum
        return try NIOSSLContext(configuration: configuration)
    }

    @Test("Notifications are accepted over TLS 1.2 and 1.3.", arguments: [TLSVersion.tlsv12, .tlsv13])
    func versions(_ version: TLSVersion) async throws {
        let files = try CertificateFiles(LocalhostCertificate.pem, LocalhostCertificate.key)
        try await TestServer.with(certificates: try files.certificates()) { server in
            let client = try await server.connect(tls: try Self.client(maximum: version))
            try await client.send(post("x"))
            #expect(try await client.response().status == 200)
            try await client.send(post("y", fields: "Connection: close\r\n"))
            #expect(try await client.response().status == 200)
            #expect(await client.rest() == "")
            #expect(server.metrics.certificateExpiry.value > 4e9)
        }
    }

    @Test("Connections with TLS, which take more memory, have a limit of their own, at which silent ones are closed.")
    func connectionLimit() async throws {
        let files = try CertificateFiles(LocalhostCertificate.pem, LocalhostCertificate.key)
        var limits = ServerLimits()
        limits.encryptedConnections = 2
        try await TestServer.with(limits: limits, certificates: try files.certificates()) { server in
            var clients: [RawClient] = []
            for number in 0..<3 {
                let client = try await server.connect(tls: try Self.client())
                try await client.send(post("\(number)"))
                #expect(try await client.response().status == 200)
                clients.append(client)
            }
            #expect(await clients[0].rest() == "")
            try await clients[1].send(post("still here"))
            #expect(try await clients[1].response().status == 200)
            #expect(server.metrics.evictedConnections.value == 1)
        }
    }

    @Test("TLS 1.1 is refused, and so is plain HTTP.")
    func oldVersions() async throws {
        let files = try CertificateFiles(LocalhostCertificate.pem, LocalhostCertificate.key)
        try await TestServer.with(certificates: try files.certificates()) { server in
            let old = try await server.connect(tls: try Self.client(maximum: .tlsv11))
            old.push(post("x"))
            #expect(await old.rest() == "")
            let plain = try await server.connect()
            plain.push(post("x"))
            #expect(!(await plain.rest()).contains("200"))
            #expect(server.ingest.bodies.isEmpty)
        }
    }

    @Test("An incomplete handshake is closed at the deadline for a head.")
    func slowHandshake() async throws {
        var limits = ServerLimits()
        limits.headDeadline = .milliseconds(500)
        let files = try CertificateFiles(LocalhostCertificate.pem, LocalhostCertificate.key)
        try await TestServer.with(limits: limits, certificates: try files.certificates()) { server in
            let client = try await server.connect()
            #expect(await client.rest() == "")
        }
    }

    @Test("Changed files are loaded without a restart, and open connections continue.")
    func reload() async throws {
        let files = try CertificateFiles(LocalhostCertificate.pem, LocalhostCertificate.key)
        let certificates = try files.certificates()
        let first = certificates.expiry
        try await TestServer.with(certificates: certificates, certificatePoll: .milliseconds(5)) { server in
            let client = try await server.connect(tls: try Self.client())
            try await client.send(post("before"))
            #expect(try await client.response().status == 200)
            try files.write(Fixtures.otherCertificate, Fixtures.otherKey)
            while server.metrics.certificateExpiry.value == Double(first) {
                await Task.yield()
            }
            try await client.send(post("after"))
            #expect(try await client.response().status == 200)
            let newcomer = try await server.connect(tls: try Self.client())
            try await newcomer.send(post("x"))
            #expect(try await newcomer.response().status == 200)
        }
    }

    @Test("An invalid pair of files is reported once, and the old certificate stays in use.")
    func badReload() throws {
        let files = try CertificateFiles(LocalhostCertificate.pem, LocalhostCertificate.key)
        let certificates = try files.certificates()
        let expiry = certificates.expiry
        #expect(certificates.reloadIfChanged() == .none)
        try files.write(Fixtures.otherCertificate, LocalhostCertificate.key)
        guard case .kept(let error) = certificates.reloadIfChanged() else {
            Issue.record("taken up")
            return
        }
        #expect(error.code == .keyMismatch)
        #expect(certificates.reloadIfChanged() == .none)
        #expect(certificates.expiry == expiry)
        try files.write(Fixtures.otherCertificate, Fixtures.otherKey)
        #expect(certificates.reloadIfChanged() == .loaded)
        #expect(certificates.expiry != expiry)
    }

    @Test("A file is read again after every change, even if its size and the time of its content are the same.")
    func sameTime() throws {
        let files = try CertificateFiles(LocalhostCertificate.pem, LocalhostCertificate.key)
        let certificates = try files.certificates()
        let wrong = String(repeating: "x", count: LocalhostCertificate.key.utf8.count)
        try files.overwriteKey(wrong)
        guard case .kept = certificates.reloadIfChanged() else {
            Issue.record("not noticed")
            return
        }
        // The time of the change itself has the resolution of the kernel's clock, a few milliseconds.
        let end = ContinuousClock.now + .seconds(5)
        var change = ServerCertificates.Change.none
        while change == .none, ContinuousClock.now < end {
            try files.overwriteKey(LocalhostCertificate.key)
            change = certificates.reloadIfChanged()
        }
        #expect(change == .loaded)
    }

    @Test("A key that does not match its certificate is reported with its setting.")
    func mismatch() throws {
        let files = try CertificateFiles(LocalhostCertificate.pem, Fixtures.otherKey)
        let error = try #require(throws: ServerError.self) { try files.certificates() }
        #expect(error.code == .keyMismatch)
        #expect(error.message.contains("SIWAD_TLS_KEY"))
    }

    @Test("Missing and invalid files are reported with their setting.")
    func unreadable() throws {
        let missing = try #require(throws: ServerError.self) {
            try ServerCertificates(certificateFile: "/nowhere/cert.pem", keyFile: "/nowhere/key.pem")
        }
        #expect(missing.code == .unreadableCertificate)
        #expect(
            missing.message
                == "cannot read /nowhere/cert.pem (SIWAD_TLS_CERTIFICATE): No such file or directory; check the path"
        )
        let files = try CertificateFiles("not a certificate", LocalhostCertificate.key)
        #expect(try #require(throws: ServerError.self) { try files.certificates() }.code == .unreadableCertificate)
        let other = try CertificateFiles(LocalhostCertificate.pem, "not a key")
        let error = try #require(throws: ServerError.self) { try other.certificates() }
        #expect(error.message.contains("SIWAD_TLS_KEY"))
    }
}

/// A certificate and its key in a temporary directory.
private final class CertificateFiles {
    private let folder: String

    init(_ certificate: String, _ key: String) throws {
        var template = Array("/tmp/siwad-tls-XXXXXX".utf8CString)
        try #require(mkdtemp(&template) != nil)
        folder = String(decoding: template.dropLast().map { UInt8(bitPattern: $0) }, as: UTF8.self)
        try write(certificate, key)
    }

    deinit {
        for name in ["cert.pem", "key.pem"] {
            unlink("\(folder)/\(name)")
        }
        rmdir(folder)
    }

    func certificates() throws -> ServerCertificates {
        try ServerCertificates(certificateFile: "\(folder)/cert.pem", keyFile: "\(folder)/key.pem")
    }

    /// Writes into the file of the key, and sets its time to the same one each time.
    func overwriteKey(_ key: String) throws {
        let descriptor = open("\(folder)/key.pem", O_WRONLY)
        try #require(descriptor >= 0)
        defer { close(descriptor) }
        let bytes = Array(key.utf8)
        #expect(Glibc.write(descriptor, bytes, bytes.count) == bytes.count)
        let time = timespec(tv_sec: 1_000_000_000, tv_nsec: 0)
        #expect(futimens(descriptor, [time, time]) == 0)
    }

    func write(_ certificate: String, _ key: String) throws {
        // The key first: a check between the two finds a mismatch and reads the files again later.
        for (name, text) in [("key.pem", key), ("cert.pem", certificate)] {
            let path = "\(folder)/\(name)"
            let descriptor = open("\(path).new", O_WRONLY | O_CREAT | O_TRUNC, 0o600)
            try #require(descriptor >= 0)
            let bytes = Array(text.utf8)
            #expect(Glibc.write(descriptor, bytes, bytes.count) == bytes.count)
            close(descriptor)
            #expect(rename("\(path).new", path) == 0)
        }
    }
}
