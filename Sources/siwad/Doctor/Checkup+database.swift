import AccountStore
import AppleTokens
import Postgres
import Settings

extension Checkup {
    /// Everything that the database is asked; what can't be asked without it is left out when it is away.
    func databaseFindings() async -> [Finding] {
        // That none is configured is said already.
        guard let settings = try? configuration.connectionSettings() else { return [] }
        var bounded = settings
        bounded.deadline = .seconds(10)
        let pool = ConnectionPool(bounded, maximum: 1)
        let findings = await findings(pool, bounded)
        await pool.close()
        return findings
    }

    private func findings(_ pool: ConnectionPool, _ settings: ConnectionSettings) async -> [Finding] {
        let now = now
        var findings: [Finding] = []
        do throws(PostgresError) {
            // The connection first, so that making it doesn't count.
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
            let state = try await SchemaState.read(settings)
            findings.append(.schema(state))
            if state.problem != nil { return findings }
        } catch {
            return findings + [.fail(.database, Self.failure(error))]
        }
        findings += await contents(pool)
        return findings
    }

    /// What is in the schema.
    private func contents(_ pool: ConnectionPool) async -> [Finding] {
        let (configuration, time) = (configuration, now())
        var findings: [Finding] = []
        findings += await ask(pool, .objects) { session throws(PostgresError) in
            let catalog = try SchemaCatalog(readFrom: session)
            let drift = SchemaDrift(of: catalog, from: .expected)
            return [.objects(drift, count: SchemaCatalog.expected.definitions.count)]
        }
        findings += await ask(pool, .partitions) { session throws(PostgresError) in
            [.partitions(try DatabaseHealth.monthsAhead(in: session))]
        }
        findings += await ask(pool, .maintenance) { session throws(PostgresError) in
            [.maintenance(try Maintenance.lastTimes(in: session), now: time)]
        }
        // The check of the key set itself reports a URL that is none.
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
        if let audiences = configuration.apps {
            findings += await ask(pool, .notifications) { session throws(PostgresError) in
                Finding.notifications(audiences, last: try DatabaseHealth.lastNotifications(in: session), now: time)
            }
        }
        return findings
    }

    /// Asks one thing; that it can't be answered is a finding too.
    private func ask(
        _ pool: ConnectionPool,
        _ check: Finding.Check,
        _ body: @Sendable (borrowing Session) throws(PostgresError) -> [Finding]
    ) async -> [Finding] {
        do throws(PostgresError) {
            return try await pool.transaction(.repeatableRead, body)
        } catch {
            return [.fail(check, Self.failure(error))]
        }
    }
}
