import AppleSimulator
import Basics
import Foundation
import JOSE
import StoreTestSupport
import TestSupport
import Testing

/// Daemons that sign people in, with a database, and a simulated Apple that they reach by HTTP.
struct SigningFixture {
    /// What a device gets from Apple.
    struct Device: Sendable {
        let token: String
        let code: String
        let nonce: String

        /// The request of a backend.
        func request(session: String?, client: String = SigningFixture.client, code: Bool = true) -> String {
            let code = code ? ",\"authorization_code\":\"\(self.code)\"" : ""
            let session = session.map { ",\"session\":{\"id\":\"\($0)\"}" } ?? ""
            return
                "{\"client_id\":\"\(client)\",\"identity_token\":\"\(token)\",\"nonce\":\"\(nonce)\"\(code)\(session)}"
        }
    }

    static let client = "com.example.one"

    let daemons: DaemonFixture
    let directory: TemporaryDirectory
    /// The base of the simulated Apple's endpoints.
    let apple: String
    /// `SIWAD_APPLE_KEYS` and `SIWAD_SEALING_KEYS` and `SIWAD_APPLE_URL`.
    let settings: [String: String]

    /// Runs a test with a new fixture.
    ///
    /// - Parameter options: further options of the simulated Apple.
    static func with(
        apple options: [String] = [],
        _ body: (SigningFixture) async throws -> Void
    ) async throws {
        try await TemporaryDirectory.with { directory in
            try await DaemonFixture.with { daemons in
                let file = try directory.write("key.pem", try daemons.apple.key.pem())
                let command = ["simulate", "apple", "--key", file, "--listen", "127.0.0.1:0"]
                let process = DaemonProcess(command + options, environment: [:])
                do {
                    try await eventually("the simulated Apple") { !process.output.isEmpty }
                    let url = try #require(process.output.first?.split(separator: " ").first)
                    let ring = try SealingKeys.newLine(name: "k1")
                    daemons.keepSecret(TokenSearch.spellings(ofRing: ring))
                    let settings = [
                        "SIWAD_APPLE_URL": String(url),
                        "SIWAD_APPLE_KEYS": "AAAAAAAAAA/KEY1234567=\(try await key(in: directory))",
                        "SIWAD_SEALING_KEYS": ring,
                    ]
                    try await body(
                        SigningFixture(daemons: daemons, directory: directory, apple: String(url), settings: settings)
                    )
                    await process.kill()
                } catch {
                    await process.kill()
                    throw error
                }
            }
        }
    }

    /// Makes a key as Apple's portal offers it.
    static func key(
        _ name: String = "AuthKey_KEY1234567.p8",
        _ arguments: [String] = ["-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256"],
        in directory: TemporaryDirectory
    ) async throws -> String {
        let file = directory.file(name)
        let made = try await OpenSSL.run(["genpkey"] + arguments + ["-out", file])
        #expect(made.isSuccess, "\(made.output)")
        try FileManager.default.setAttributes([.posixPermissions: 0o600], ofItemAtPath: file)
        return file
    }

    // MARK: - Daemons

    func socket(_ name: String) -> String { directory.file("\(name).sock") }

    /// Starts a daemon that listens for applications on a socket of its own.
    func start(_ name: String, _ further: [String: String] = [:], arguments: [String] = ["serve"]) -> DaemonProcess {
        let own = settings.merging(["SIWAD_APPLICATION_LISTEN": "unix:\(socket(name))"]) { $1 }
        return daemons.start(own.merging(further) { $1 }, arguments: arguments)
    }

    /// Starts a daemon, and returns once it is ready.
    func ready(_ name: String, _ further: [String: String] = [:]) async throws -> DaemonProcess {
        let daemon = start(name, further)
        _ = try await daemon.ready()
        return daemon
    }

    /// Sends a request to sign in to a daemon.
    func post(_ body: String, to name: String, key: String? = nil, bearer: String? = nil) async throws -> WebResponse {
        var headers = key.map { ["Idempotency-Key": $0] } ?? [:]
        if let bearer { headers["Authorization"] = "Bearer \(bearer)" }
        return try await Web.request(
            "POST",
            "http+unix://\(socket(name).percentEncoded)/v1/sign-in",
            body: body,
            type: "application/json",
            headers: headers
        )
    }

    // MARK: - Apple

    @discardableResult
    func control(_ name: String, _ body: String = "") async throws -> JSONValue {
        let response = try await Web.post(body, to: "\(apple)/simulator/\(name)")
        #expect(response.status == 200, "\(response.body)")
        return try JSONValue(parsing: Array(response.body.utf8))
    }

    /// A person signs in on a device.
    ///
    /// - Parameter members: further members of the request to the simulator, each after a comma.
    func device(_ person: String = "ada", nonce: String? = nil, members: String = "") async throws -> Device {
        let nonce = nonce ?? "nonce-\(SimulatedEvent.randomID())"
        daemons.keepSecret([nonce])
        let usual = "\"person\":\"\(person)\",\"client_id\":\"\(Self.client)\",\"nonce\":\"\(nonce)\""
        let body = "{\(usual)\(members)}"
        let answer = try await control("sign-in", body)
        return Device(
            token: try #require(answer["identityToken"]?.string),
            code: try #require(answer["authorizationCode"]?.string),
            nonce: nonce
        )
    }

    /// How often Apple's token endpoint was asked.
    func tokenRequests() async throws -> Int {
        try await control("log")["requests"]?.array?.count { $0["endpoint"]?.string == "token" } ?? 0
    }
}

extension WebResponse {
    /// A member of the JSON body.
    func member(_ name: String) -> JSONValue? {
        // The caller sees the missing value.
        (try? JSONValue(parsing: Array(body.utf8)))?[name]
    }
}
