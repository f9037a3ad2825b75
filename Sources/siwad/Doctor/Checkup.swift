import AccountStore
import AppleTokens
import Basics
import Glibc
import Listening
import Postgres
import Settings
import Spool
import Terminal
import WebClient

/// Runs the checks of `siwad doctor`. Each check ends within seconds. To add a check, add a case to `Finding.Check`, a
/// function of `Finding` that judges the result, and a call here.
struct Checkup: Sendable {
    let configuration: Configuration
    let loops: EventLoops
    let now: @Sendable () -> WallTime
    let secretFiles: [String]
    /// True to ask Apple's token endpoint about each client id.
    let isLive: Bool

    func run() async -> Report {
        async let database = databaseFindings()
        async let keys = attempt(.keys, keyFindings)
        let scheme = configuration.tls == nil ? "http" : "https"
        let (listen, path) = (configuration.listen, configuration.notificationPath)
        async let endpoint = probe(.endpoint, scheme, listen, .listen, path, Finding.endpoint)
        let operations = configuration.operationsListen
        async let readiness = probe(
            .readiness,
            "http",
            operations,
            .operationsListen,
            "/readyz?verbose",
            Finding.readiness
        )
        async let instance = instanceFinding()
        async let application = applicationFinding()
        let files = [configuration.tls?.key, configuration.applicationTLS?.key].compactMap(\.self) + secretFiles
        let exposure = Finding.files(files) + [.operations(operations)]
        let settings = await configurationFindings()
        let spool = await attempt(.spool, spoolFindings)
        let appleKeys = configuration.appleKeys.map { [Finding.appleKeys($0, configuration.apps)] } ?? []
        let hasKeys = configuration.appleKeys?.absentCredential == nil
        let secrets = hasKeys ? [clientSecretFinding()].compactMap(\.self) + (isLive ? await liveFindings() : []) : []
        let certificates = [authoritiesFinding(), certificateFinding(), applicationCertificateFinding()]
            .compactMap(\.self)
        let local = settings + certificates + exposure + spool + appleKeys + secrets
        let daemon = [await endpoint, await readiness, await instance, await application].compactMap(\.self)
        return Report(local + (await keys) + daemon + (await database))
    }

    private func attempt(_ check: Finding.Check, _ body: () async throws -> [Finding]) async -> [Finding] {
        do {
            return try await body()
        } catch {
            return [.fail(check, Self.failure(error))]
        }
    }

    static func failure(_ error: any Error) -> CommandFailure {
        CommandFailure(knownCause: error) ?? CommandFailure(.failed, "\(error)")
    }

    /// Checks the database, the apps and the sign-ins separately, because each may be wrong.
    private func configurationFindings() async -> [Finding] {
        let database = await attempt(.configuration) {
            _ = try configuration.connectionSettings()
            return []
        }
        let apps = await attempt(.configuration) { [try appsFinding()] }
        let signIns = await attempt(.configuration) {
            // With keys of Apple's, the check of the client secrets reports the same.
            if configuration.signsIn, configuration.appleKeys == nil { _ = try configuration.signInPolicy() }
            return []
        }
        let callers = await attempt(.configuration) {
            try configuration.checkServing()
            return []
        }
        let issuer = [Finding.issuer(configuration.issuer, keysURL: try? configuration.keySetURL())].compactMap(\.self)
        return database + apps + issuer + callers + signIns.filter { !apps.contains($0) }
    }

    private func appsFinding() throws -> Finding {
        let audiences = try configuration.audiences()
        let apps = counted(audiences.groups.count, "app group")
        let teams = counted(Set(audiences.groups.map(\.team)).count, "team")
        let clients = counted(audiences.groups.flatMap(\.clients).count, "client id")
        return .pass(.configuration, "\(apps) of \(teams) with \(clients)")
    }

    /// nil if siwad needs no authorities of receivers, or can read them. siwad serve does not start without them.
    private func authoritiesFinding() -> Finding? {
        guard configuration.effects == .on else { return nil }
        do throws(SettingsError) {
            try configuration.checkDeliveryAuthorities()
            return nil
        } catch {
            return .fail(.configuration, "\(error)", "correct the file, or name another one")
        }
    }

    private func keyFindings() async throws -> [Finding] {
        let url = try configuration.keySetURL()
        let (version, group) = (Version.current, loops.group)
        let fetcher = KeySetFetcher(url: url, version: version, eventLoopGroup: group, deadline: .seconds(5))
        let before = now()
        let (bytes, date) = try await fetcher.fetchDated()
        let keys = Finding.keys(bytes, from: "\(url)")
        guard let date, let time = WallTime(httpDate: date) else { return [keys] }
        // The header is cut to the second, and was written between request and response.
        let middle = before + now().duration(since: before) / 2
        let ahead = middle.duration(since: time + .milliseconds(500))
        return [keys, .appleClock(ahead: ahead, leeway: configuration.clockLeeway)]
    }

    private func probe(
        _ check: Finding.Check,
        _ scheme: String,
        _ address: HostAndPort,
        _ key: SettingKey,
        _ path: String,
        _ judge: @Sendable (LocalProbe.Response, String) -> Finding
    ) async -> Finding {
        guard let url = Self.url(scheme, address).map({ $0 + path }) else {
            return .warn(check, "not asked: \(key.environmentName) leaves the port to the system", "name a port")
        }
        do throws(WebClientError) {
            return judge(try await LocalProbe.get(url, version: Version.current, eventLoopGroup: loops.group), url)
        } catch {
            return .fail(check, error.description, "start siwad serve with this configuration")
        }
    }

    /// nil if no siwad answers, which the check of its readiness reports.
    private func instanceFinding() async -> Finding? {
        let path = "/readyz?verbose"
        // A second request, so that the other checks need not wait for the database.
        guard let url = Self.url("http", configuration.operationsListen),
            let answer = try? await LocalProbe.get(url + path, version: Version.current, eventLoopGroup: loops.group),
            answer.body.contains("readyz check")
        else { return nil }
        let own = Instance(database: await databaseIdentity(), settings: configuration.digest())
        return .instance(Instance(readiness: answer.body), own, at: url)
    }

    private func databaseIdentity() async -> String? {
        guard var settings = try? configuration.connectionSettings() else { return nil }
        settings.deadline = .seconds(10)
        let pool = ConnectionPool(settings, maximum: 1)
        return await withCleanup(pool.close) {
            // The check of the database reports why it does not answer.
            try? await pool.withSession(DatabaseHealth.identity)
        }
    }

    /// The URL of a local server that listens on an address; nil if the system chooses its port.
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

    private func certificateFinding() -> Finding {
        guard let tls = configuration.tls else {
            return .pass(.certificate, "none: a proxy speaks https for siwad")
        }
        do throws(ServerError) {
            let certificates = try ServerCertificates(certificateFile: tls.certificate, keyFile: tls.key)
            return .certificate(validUntil: certificates.expiry, now: now())
        } catch {
            return .fail(.certificate, error.description, "give siwad a certificate with its chain, and its key")
        }
    }

    private func spoolFindings() throws -> [Finding] {
        guard let directory = configuration.spoolDirectory else {
            return [.pass(.spool, "none: while PostgreSQL is away, Apple is answered 503")]
        }
        guard access(directory, R_OK | W_OK | X_OK) == 0, let contents = SpoolContents(directory: directory) else {
            let text = "\(directory) can't be used (\(String(cString: strerror(errno))))"
            return [.fail(.spool, text, "make it a directory of the user that siwad serve runs as")]
        }
        // Root checks for the user that owns the directory: siwad serve runs as another user.
        try Spool.check(directory: directory, for: geteuid() == 0 ? contents.owner : geteuid())
        let (limit, time) = (configuration.spoolLimit, now())
        let disk = SpoolContents.free(at: directory).map {
            Finding.disk(free: $0, spoolLimit: limit, used: contents.bytes)
        }
        let refused = Finding.refused(contents, limit: limit, now: time)
        return [refused, .spool(contents, limit: limit, now: time), disk].compactMap(\.self)
    }
}

// MARK: - Database

extension Checkup {
    /// All checks of the database. If it is unreachable, only that is reported.
    private func databaseFindings() async -> [Finding] {
        // The check of the configuration reports a missing database.
        guard var settings = try? configuration.connectionSettings() else { return [] }
        settings.deadline = .seconds(10)
        let pool = ConnectionPool(settings, maximum: 1)
        return await withCleanup(pool.close) {
            let now = now
            var findings: [Finding] = []
            do throws(PostgresError) {
                // Inside a session, so that connecting does not count as latency.
                findings += try await pool.withSession { session throws(PostgresError) in
                    let before = now()
                    let server = try DatabaseHealth.server(in: session)
                    let latency = now().duration(since: before)
                    let ahead = (before + latency / 2).duration(since: server.clock)
                    return [
                        .database(server, latency: latency), .databaseTLS(session.endpoint),
                        .databaseClock(ahead: ahead, leeway: configuration.clockLeeway),
                    ]
                }
                findings += await ask(pool, .publicSchema) { session throws(PostgresError) in
                    [.publicSchema(isOpen: try DatabaseHealth.isPublicSchemaOpen(in: session))]
                }
                let state = try await SchemaState.read(pool)
                findings.append(.schema(state))
                if state.problem == nil { findings += await contents(pool) }
                return findings
            } catch {
                return findings + [.fail(.database, Self.failure(error))]
            }
        }
    }

    private func contents(_ pool: ConnectionPool) async -> [Finding] {
        let (configuration, time) = (configuration, now())
        var findings = await ask(pool, .objects) { session throws(PostgresError) in
            let drift = SchemaDrift(of: try SchemaCatalog(readFrom: session), from: .expected)
            return [.objects(drift, count: SchemaCatalog.expected.definitions.count)]
        }
        findings += await ask(pool, .writes) { session throws(PostgresError) in
            try Notifications.checkWritable(in: session)
            do throws(PostgresError) {
                try Notifications.checkRights(in: session)
            } catch let error where error.sqlState == .insufficientPrivilege {
                let remedy =
                    "connect as a member of siwad_daemon; if it is one, run SELECT siwa.grant_roles() as the owner"
                return [.fail(.writes, "\(error)", remedy)]
            }
            return [.pass(.writes, "this role may store notifications")]
        }
        findings += await ask(pool, .partitions) { session throws(PostgresError) in
            [.partitions(try DatabaseHealth.monthsAhead(in: session))]
        }
        findings += await ask(pool, .maintenance) { session throws(PostgresError) in
            [.maintenance(try Maintenance.lastTimes(in: session), now: time)]
        }
        findings += await ask(pool, .publication) { session throws(PostgresError) in
            [.publication(try Publication.state(in: session))]
        }
        findings += await sealingKeyFindings(pool)
        // The check of the key set reports a malformed URL.
        if let trust = try? configuration.keyTrust() {
            findings += await ask(pool, .keptKeys) { session throws(PostgresError) in
                let keptAt = try DatabaseHealth.keysKeptAt(from: trust.url, in: session)
                let refresh = configuration.keysRefresh
                return [.keptKeys(keptAt, refresh: refresh, maximumAge: trust.maximumAge, now: time)]
            }
        }
        findings += await ask(pool, .deadLetters) { session throws(PostgresError) in
            let letters = try DatabaseHealth.openLetters(in: session)
            return [.deadLetters(letters, limit: configuration.deadLetterLimit, now: time)]
        }
        findings += await attempt(.endpoints) {
            let overviews = try await pool.transaction(.repeatableRead) { session throws(PostgresError) in
                try Endpoints.overviews(in: session)
            }
            let failures = await addressFailures(overviews.map(\.endpoint))
            let dead = overviews.map(\.dead).reduce(0, +)
            return Finding.endpoints(overviews, addressFailures: failures, now: time) + [.deliveries(dead: dead)]
        }
        guard let audiences = configuration.apps else { return findings }
        return findings
            + (await ask(pool, .notifications) { session throws(PostgresError) in
                Finding.notifications(audiences, last: try DatabaseHealth.lastNotifications(in: session), now: time)
            })
    }

    /// The sealing keys of endpoints' secrets, of refresh tokens, and of codes.
    private func sealingKeyFindings(_ pool: ConnectionPool) async -> [Finding] {
        let keys = configuration.sealingKeys
        let secrets: SealedSecrets?
        var findings: [Finding] = []
        do throws(PostgresError) {
            let read = try await pool.transaction(.repeatableRead) { session throws(PostgresError) in
                try SealedSecrets(readWith: keys, in: session)
            }
            findings.append(.sealingKeys(read))
            secrets = read
        } catch {
            findings.append(.fail(.sealingKeys, Self.failure(error)))
            secrets = nil
        }
        let secretsMayNeedOldKeys = secrets?.mayNeedOldKeys ?? true
        return findings
            + (await ask(pool, .tokenKeys) { session throws(PostgresError) in
                let codes = try SignIns.waitingCodes(in: session)
                let counts = try RefreshTokens.counts(in: session)
                return [.tokenKeys(counts, codes: codes, secretsMayNeedOldKeys: secretsMayNeedOldKeys, keys)]
            })
    }

    /// Why siwad would not connect to an endpoint, by the endpoint's id. Nothing is sent.
    private func addressFailures(_ endpoints: [Endpoint]) async -> [Int32: EndpointClient.Failure] {
        let (settings, resolver) = (configuration.endpointClient, Resolver())
        return await withTaskGroup(of: (Int32, EndpointClient.Failure?).self) { group in
            for endpoint in endpoints where endpoint.configuration.kind == .webhook {
                group.addTask {
                    do {
                        let url = try EndpointURL(parsing: endpoint.configuration.url ?? "")
                        _ = try await settings.addresses(of: url, by: resolver)
                        return (endpoint.id, nil)
                    } catch let failure as EndpointClient.Failure {
                        return (endpoint.id, failure)
                    } catch {
                        return (endpoint.id, EndpointClient.Failure(.blocked, "\(error)"))
                    }
                }
            }
            return await group.reduce(into: [:]) { failures, result in failures[result.0] = result.1 }
        }
    }

    private func ask(
        _ pool: ConnectionPool,
        _ check: Finding.Check,
        _ body: @Sendable (borrowing Session) throws(PostgresError) -> [Finding]
    ) async -> [Finding] {
        await attempt(check) { try await pool.transaction(.repeatableRead, body) }
    }
}
