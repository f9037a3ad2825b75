import AppleClient
import AppleTokens
import Basics
import Glibc
import NotificationServer
import Postgres
import Settings
import Spool
import Terminal

/// The checks of `siwad doctor`: asks what there is to ask and has it judged. Each of them ends within seconds.
struct Checkup: Sendable {
    /// What is in force.
    let configuration: Configuration
    /// For what goes over a network.
    let loops: EventLoops
    /// This machine's clock.
    let now: @Sendable () -> WallTime
    /// The file that holds the database's URL, if one does.
    let databaseURLFile: String?

    /// Makes all checks.
    func run() async -> Report {
        async let database = databaseFindings()
        async let keys = keyFindings()
        async let endpoint = endpointFinding()
        async let readiness = readinessFinding()
        let files = [configuration.tls?.key, databaseURLFile].compactMap(\.self)
        let exposure = Finding.files(files) + [.operations(configuration.operationsListen)]
        let local = [configurationFinding(), certificateFinding()] + exposure + spoolFindings()
        return Report(local + (await keys) + [await endpoint, await readiness] + (await database))
    }

    // MARK: - Private parts

    private func configurationFinding() -> Finding {
        do {
            let audiences = try configuration.audiences()
            _ = try configuration.connectionSettings()
            let teams = counted(Set(audiences.groups.map(\.team)).count, "team")
            let clients = counted(audiences.groups.flatMap(\.clients).count, "client id")
            return .pass(
                .configuration,
                "\(counted(audiences.groups.count, "app group")) of \(teams) with \(clients)"
            )
        } catch {
            return .fail(.configuration, Self.failure(error))
        }
    }

    private func keyFindings() async -> [Finding] {
        do {
            let url = try configuration.keySetURL()
            let fetcher = KeySetFetcher(
                url: url,
                version: Version.current,
                eventLoopGroup: loops.group,
                deadline: .seconds(5)
            )
            let before = now()
            let (bytes, date) = try await fetcher.fetchDated()
            let keys = Finding.keys(bytes, from: "\(url)")
            guard let date, let time = WallTime(httpDate: date) else { return [keys] }
            // The header is cut to the second, and was written at some time while we waited.
            let after = now()
            let middle = before + after.duration(since: before) / 2
            let ahead = middle.duration(since: time + .milliseconds(500))
            return [keys, .appleClock(ahead: ahead, leeway: configuration.clockLeeway)]
        } catch {
            return [.fail(.keys, Self.failure(error))]
        }
    }

    private func endpointFinding() async -> Finding {
        let url = Self.url(configuration.tls == nil ? "http" : "https", configuration.listen)
        guard let url else {
            return .warn(.endpoint, "not asked: SIWAD_LISTEN leaves the port to the system", "name a port")
        }
        let address = url + configuration.notificationPath
        return await probe(.endpoint, address) { .endpoint($0, url: address) }
    }

    private func readinessFinding() async -> Finding {
        guard let url = Self.url("http", configuration.operationsListen) else {
            return .warn(.readiness, "not asked: SIWAD_OPERATIONS_LISTEN leaves the port to the system", "name a port")
        }
        let address = url + "/readyz?verbose"
        return await probe(.readiness, address) { .readiness($0, url: address) }
    }

    private func probe(
        _ check: Finding.Check,
        _ url: String,
        _ judge: (LocalProbe.Response) -> Finding
    ) async -> Finding {
        do throws(AppleClientError) {
            return judge(try await LocalProbe(version: Version.current, eventLoopGroup: loops.group).get(url))
        } catch {
            return .fail(check, error.description, "start siwad serve with this configuration")
        }
    }

    private func certificateFinding() -> Finding {
        guard let tls = configuration.tls else { return .noCertificate }
        do throws(ServerError) {
            let certificates = try ServerCertificates(certificateFile: tls.certificate, keyFile: tls.key)
            return .certificate(validUntil: certificates.expiry, now: now())
        } catch {
            return .fail(.certificate, error.description, "give siwad a certificate with its chain, and its key")
        }
    }

    private func spoolFindings() -> [Finding] {
        guard let directory = configuration.spoolDirectory else { return [.noSpool] }
        guard access(directory, R_OK | W_OK | X_OK) == 0, let contents = SpoolContents(directory: directory) else {
            return [
                .fail(
                    .spool,
                    "\(directory) can't be used (\(String(cString: strerror(errno))))",
                    "make it a directory of the user that siwad serve runs as"
                )
            ]
        }
        do throws(SpoolError) {
            // Root checks for the user that owns the directory: siwad serve runs as another user.
            try Spool.check(directory: directory, for: geteuid() == 0 ? contents.owner : geteuid())
        } catch {
            return [.fail(.spool, Self.failure(error))]
        }
        let (limit, time) = (configuration.spoolLimit, now())
        let refused = Finding.refused(contents, limit: limit, now: time).map { [$0] } ?? []
        let spool = refused + [.spool(contents, limit: limit, now: time)]
        guard let free = SpoolContents.free(at: directory) else { return spool }
        return spool + [.disk(free: free, spoolLimit: limit, used: contents.bytes)]
    }

    /// Where a server that listens on an address is reached from this machine; nil if the system chooses its port.
    static func url(_ scheme: String, _ address: HostAndPort) -> String? {
        guard address.port != 0 else { return nil }
        let host =
            switch address.host {
            case "0.0.0.0", "*", "": "127.0.0.1"
            case "::": "::1"
            default: address.host
            }
        return "\(scheme)://\(HostAndPort(host: host, port: address.port))"
    }

    /// The words in which a command would end.
    static func failure(_ error: any Error) -> CommandFailure {
        CommandFailure(knownCause: error) ?? CommandFailure(.failed, "\(error)")
    }
}
