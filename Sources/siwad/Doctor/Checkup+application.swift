import Basics
import Glibc
import Listening
import Settings
import WebClient

extension Checkup {
    private static let path = "/v1/openapi.json"

    /// nil if there is no application endpoint.
    func applicationFinding() async -> Finding? {
        guard let address = configuration.applicationListen else { return nil }
        do throws(ServerError) {
            _ = try applicationCertificates()
        } catch {
            return .fail(.application, error.description, "give the endpoint a certificate with its chain, and its key")
        }
        let finding = await answerFinding(of: address)
        // Client ids that are missing matter less than an endpoint that does not answer.
        return finding.status == .pass ? callersFinding() ?? finding : finding
    }

    private func answerFinding(of address: ApplicationAddress) async -> Finding {
        switch address {
        case .unix(let path):
            if let finding = socketFinding(path) { return finding }
            return await answer(at: "http+unix://\(path.percentEncoded)", named: "unix:\(path)")
        case .tcp(let address):
            let scheme = configuration.applicationTLS == nil ? "http" : "https"
            guard let url = Self.url(scheme, address) else {
                let name = configuration.name(of: .applicationListen)
                return .warn(.application, "not asked: \(name) leaves the port to the system", "name a port")
            }
            return await answer(at: url, named: url)
        }
    }

    /// nil if every client id of the callers is configured.
    private func callersFinding() -> Finding? {
        let unknown = configuration.unknownClientsOfCallers
        guard !unknown.isEmpty else { return nil }
        let (tokens, apps) = (SettingKey.applicationTokens.environmentName, SettingKey.apps.environmentName)
        let names = unknown.joined(separator: ", ")
        return .warn(.application, "\(tokens) names client ids that \(apps) lacks: \(names)", "correct one of the two")
    }

    /// nil unless the application endpoint speaks TLS. The check of the endpoint reports files that can't be read.
    func applicationCertificateFinding() -> Finding? {
        guard configuration.applicationListen != nil,
            let certificates = try? applicationCertificates()
        else { return nil }
        return .certificate(validUntil: certificates.expiry, now: now(), subject: "application endpoint")
    }

    private func applicationCertificates() throws(ServerError) -> ServerCertificates? {
        guard let tls = configuration.applicationTLS else { return nil }
        return try ServerCertificates(certificateFile: tls.certificate, keyFile: tls.key, settings: .application)
    }

    /// nil if the socket is there with its permissions, and this process may connect.
    private func socketFinding(_ path: String) -> Finding? {
        var status = stat()
        guard lstat(path, &status) == 0 else {
            let reason = String(cString: strerror(errno))
            return .fail(.application, "\(path): \(reason)", "start siwad serve with this configuration")
        }
        let (mode, wanted) = (UInt16(status.st_mode & 0o777), configuration.applicationSocketMode)
        guard mode == wanted else {
            let (mode, wanted) = (String(mode, radix: 8), String(wanted, radix: 8))
            let text =
                "\(path) has the mode 0\(mode), and \(SettingKey.applicationSocketMode.environmentName) is 0\(wanted)"
            return .warn(.application, text, "restart siwad serve")
        }
        guard access(path, W_OK) == 0 else {
            let remedy = "run siwad doctor as a user who may connect"
            return .warn(.application, "not asked: this user may not connect to \(path)", remedy)
        }
        return nil
    }

    private func answer(at url: String, named name: String) async -> Finding {
        do throws(WebClientError) {
            let response = try await LocalProbe.get(
                url + Self.path,
                version: Version.current,
                eventLoopGroup: loops.group
            )
            return .application(response, at: name, hasTokens: configuration.applicationTokens != nil)
        } catch {
            return .fail(.application, "nothing answers at \(name)", "start siwad serve with this configuration")
        }
    }
}

extension Finding {
    static func application(_ response: LocalProbe.Response, at name: String, hasTokens: Bool) -> Finding {
        let answers = "\(name) answers, in \(response.latency.milliseconds) ms"
        switch (response.status, hasTokens) {
        case (401, true): return .pass(.application, "\(answers); callers need a token")
        case (200, false):
            return .pass(.application, "\(answers); callers need no token, only the permission to connect")
        case (200, true), (401, false):
            let name = SettingKey.applicationTokens.environmentName
            let text = "\(answers), but not with the \(name) of this configuration"
            return .warn(.application, text, "reload siwad serve, or give siwad doctor its configuration")
        default:
            return .fail(
                .application,
                "\(name) answers \(response.status): it is not siwad",
                "correct \(SettingKey.applicationListen.environmentName)"
            )
        }
    }
}

extension ServerCertificates.SettingNames {
    /// Of the application endpoint.
    static let application = Self(
        certificate: SettingKey.applicationTLSCertificate.environmentName,
        key: SettingKey.applicationTLSKey.environmentName
    )
}
