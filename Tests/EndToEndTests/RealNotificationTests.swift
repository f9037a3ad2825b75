import AppleTokens
import AppleSimulator
import Basics
import Postgres
import StoreTestSupport
import TestSupport
import Testing

@Suite(
    "Real notifications from Apple",
    .enabled(if: Vectors.areThere, "the folder ../shared/vectors with real notifications is missing"),
    .timeLimit(.minutes(10))
)
struct RealNotificationTests {
    private func time(_ vector: Vectors.Vector) -> WallTime { WallTime(seconds: vector.issuedAt + 5) }

    private func count(_ table: String, _ database: TestDatabase) async throws -> Int64 {
        let connection = try await PostgresConnection.connect(database.settings)
        let count = try await connection.withSession { session throws(PostgresError) in
            try session.execute(Statement(once: "SELECT count(*) FROM \(table)")).int64(0, 0)
        }
        await connection.close()
        return count
    }

    @Test("At its own time, each is accepted by the endpoint and applied once.", arguments: Vectors.all)
    func applied(vector: Vectors.Vector) async throws {
        let token = try Vectors.text(vector.file)
        let keySet = try Vectors.text("apple-keys-2022-07.json")
        try await TestDatabase.with(.siwa) { database in
            try await EndpointInProcess.with(database, app: vector.app, keySet: keySet, now: time(vector)) {
                endpoint async throws in
                for body in [SimulatedApple.body(token: token), "payload=" + token, token] {
                    #expect(try await Web.post(body, to: endpoint.url).status == 200)
                }
            }
            let connection = try await PostgresConnection.connect(database.settings)
            let kept = try await connection.withSession { session throws(PostgresError) in
                let rows = try session.execute(
                    Statement(
                        once: "SELECT jti, event_type, outcome, state FROM siwa.notifications"
                            + " JOIN siwa.account_states USING (team_id, sub, app_id)"
                    )
                )
                let columns: [Int] = rows.count == 1 ? [0, 1, 2, 3] : []
                return try columns.map { column throws(PostgresError) in try rows.string(0, column) }
            }
            await connection.close()
            #expect(kept == [vector.id, "consent-revoked", "applied", "revoked"])
        }
    }

    @Test("Each is refused if any single bit differs.", arguments: Vectors.all)
    func changed(vector: Vectors.Vector) async throws {
        let token = Array(try Vectors.text(vector.file).utf8)
        let keySet = try Vectors.text("apple-keys-2022-07.json")
        try await TestDatabase.with(.siwa) { database in
            try await EndpointInProcess.with(database, app: vector.app, keySet: keySet, now: time(vector)) { endpoint in
                for position in token.indices {
                    var changed = token
                    changed[position] ^= 1 << UInt8(position % 7)
                    let response = try await Web.post(String(decoding: changed, as: UTF8.self), to: endpoint.url)
                    #expect([400, 401, 503].contains(response.status), "byte \(position): \(response.status)")
                    // 503 only if the kid changed, since the new one may be a key that siwad doesn't know yet.
                    if response.status == 503 { #expect(response.reason == "keys-unavailable") }
                }
            }
            #expect(try await count("siwa.notifications", database) == 0)
            #expect(try await count("siwa.accounts", database) == 0)
            #expect(try await count("siwa.dead_letters WHERE reason <> 'keys-unavailable'", database) == 0)
        }
    }

    @Test("Today each is expired: acknowledged, kept as a dead letter, without effect.", arguments: Vectors.all)
    func expired(vector: Vectors.Vector) async throws {
        try await DaemonFixture.with { fixture in
            let settings = [
                "SIWAD_APPS": "AAAAAAAAAA/\(vector.app)", "SIWAD_KEYS_URL": "file://\(Vectors.keySet)",
            ]
            try await fixture.withDaemon(settings) { _, addresses in
                let token = try Vectors.text(vector.file)
                #expect(try await Web.post(token, to: addresses.notifications).status == 200)
                let kept = try await fixture.texts("SELECT reason || ' ' || jti || ' ' || aud FROM siwa.dead_letters")
                #expect(kept == ["expired \(vector.id) \(vector.app)"])
                #expect(try await fixture.texts("SELECT sub FROM siwa.accounts").isEmpty)
            }
        }
    }

    @Test("siwad verify explains each offline, and ends with 1 at the first failed check.")
    func verify() async throws {
        try await TemporaryDirectory.with { directory in
            for vector in Vectors.all {
                let file = Vectors.path(vector.file)
                let at = ["--at", time(vector).iso8601]
                let good = try await siwad(["verify", file, "--keys", Vectors.keySet] + at)
                #expect(good.status == 0, "\(good.output)\(good.errors)")
                let late = try await siwad(["verify", file, "--keys", Vectors.keySet])
                #expect(late.status == 1)
                #expect(late.output.contains("expired") || late.output.contains("exp"), "\(late.output)")
                var changed = Array(try Vectors.text(vector.file).utf8)
                changed[changed.count - 20] ^= 1
                let text = String(decoding: changed, as: UTF8.self)
                let broken = try directory.write(vector.file, text)
                let refused = try await siwad(["verify", broken, "--keys", Vectors.keySet, "--json"] + at)
                #expect(refused.status == 1)
                #expect(refused.lines.last?.contains("signature") == true, "\(refused.output)")
            }
        }
    }
}
