import AppleTokens
import Basics
import Glibc
import JOSE
import Terminal
import TestSupport
import Testing

@testable import AccountStore
@testable import WebClient
@testable import Postgres
@testable import siwad

private let now = WallTime(seconds: 1_790_000_000)

@Suite("The findings of siwad doctor")
struct FindingTests {
    private func ago(_ seconds: Int64) -> WallTime { now - .seconds(seconds) }

    @Test("A clock difference of seconds passes, and one above the leeway fails.")
    func clocks() {
        func judged(_ seconds: Double) -> Finding {
            .appleClock(ahead: .seconds(seconds), leeway: .seconds(300))
        }
        #expect(judged(2.9).status == .pass)
        #expect(judged(-3).status == .pass)
        #expect(judged(4).detail == "this machine's clock is 4 s ahead of Apple's")
        #expect(judged(-200).detail == "this machine's clock is 3 min behind Apple's")
        #expect([4, -300, 301, -4_000].map { judged($0).status } == [.warn, .warn, .fail, .fail])
        let database = Finding.databaseClock(ahead: .seconds(-4_000), leeway: .seconds(300))
        #expect(database.detail == "this machine's clock is 66 min behind the database's")
        #expect(database.remedy == "synchronise both by NTP")
    }

    @Test("Only verify-full passes for a database on another machine.")
    func databaseTLS() {
        func judged(_ address: String?, _ sslMode: String) -> Finding.Status {
            Finding.databaseTLS(ServerEndpoint(address: address, sslMode: sslMode)).status
        }
        for address in ["192.0.2.1", "10.0.0.1", "2001:db8::1", "128.0.0.1", "::2", "::ffff:192.0.2.1"] {
            for mode in ["", "disable", "allow", "prefer", "require", "verify-ca"] {
                #expect(judged(address, mode) == .warn)
            }
            #expect(judged(address, "verify-full") == .pass)
        }
        for address in [nil, "127.0.0.1", "127.1.2.3", "::1"] { #expect(judged(address, "prefer") == .pass) }
        let finding = Finding.databaseTLS(ServerEndpoint(address: "192.0.2.1", sslMode: "require"))
        #expect(finding.detail.contains("192.0.2.1") && finding.detail.contains("sslmode=require"))
        #expect(finding.remedy?.contains("verify-full") == true)
    }

    @Test("A missing partition fails for the present month, and is a warning for a later one.")
    func partitions() {
        #expect(Finding.partitions([true, true, true]).status == .pass)
        #expect(Finding.partitions([true, true, false]).status == .warn)
        #expect(Finding.partitions([false, true, true]).status == .fail)
    }

    @Test("Overdue maintenance is a warning.")
    func maintenance() {
        let never = Finding.maintenance([.partitions: now], now: now)
        let others = "never done: retention, erasure, sessions, deliveries, sign-ins, tokens"
        #expect((never.status, never.detail) == (.warn, others))
        let times: [MaintenanceTask: WallTime] = [
            .partitions: ago(60), .retention: ago(600), .erasure: ago(60), .sessions: ago(7_200),
            .deliveries: ago(60), .signIns: ago(60), .tokens: ago(60),
        ]
        #expect(Finding.maintenance(times, now: now).detail == "retention was last done 10 min ago")
        #expect(Finding.maintenance(times, now: now).status == .pass)
        #expect(Finding.maintenance(times, now: now + .seconds(4 * 3_600)).status == .warn)
    }

    @Test("Refresh tokens whose key is missing are a failure; unreadable ones and old keys are a warning.")
    func tokenKeys() throws {
        let line = "QUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUE="
        let (one, two) = (
            try SealingKeys(parsing: "new:\(line)"), try SealingKeys(parsing: "new:\(line)\nold:\(line)")
        )
        func judged(
            _ keys: SealingKeys?,
            codes: Int = 0,
            _ counts: (String, RefreshTokenRecord.State, Int)...
        ) -> Finding {
            .tokenKeys(
                counts.map { RefreshTokenCount(keyName: $0.0, state: $0.1, count: $0.2) },
                codes: codes,
                secretsMayNeedOldKeys: true,
                keys
            )
        }
        #expect(judged(nil).detail == "no refresh token")
        #expect(judged(nil, ("new", .valid, 1)).status == .fail)
        let missing = judged(one, ("new", .valid, 1), ("old", .refused, 2), ("old", .valid, 3))
        #expect(missing.status == .fail)
        #expect(missing.detail == "6 refresh tokens, some with keys that SIWAD_SEALING_KEYS lacks (old: 5)")
        let unreadable = judged(one, ("new", .valid, 1), ("old", .unreadable, 2))
        #expect(unreadable.status == .warn)
        #expect(unreadable.detail == "2 of 3 refresh tokens unreadable: no key opened them (sealed with old)")
        let waiting = judged(two, ("new", .valid, 1), ("old", .valid, 2))
        #expect((waiting.status, waiting.detail) == (.warn, "3 refresh tokens, some with old keys (old: 2)"))
        #expect(waiting.remedy == "siwad sealing rotate --note '…' seals them again")
        let done = judged(two, ("new", .valid, 1))
        #expect((done.status, done.detail) == (.pass, "1 refresh token, all sealed with new; none needs old any more"))
        let under = "; 2 codes that Apple has not answered may need old for up to five minutes"
        #expect(judged(two, codes: 2, ("new", .valid, 1)).detail == "1 refresh token, all sealed with new\(under)")
        #expect(judged(two, codes: 2).detail == "no refresh token\(under)")
        #expect(judged(one, codes: 2, ("new", .valid, 1)).detail == "1 refresh token, all sealed with new")

        let end = "; nothing needs old any more"
        func agreed(_ keys: SealingKeys?, codes: Int = 0, _ count: (String, RefreshTokenRecord.State, Int)?) -> String {
            let counts = count.map { [RefreshTokenCount(keyName: $0.0, state: $0.1, count: $0.2)] } ?? []
            return Finding.tokenKeys(counts, codes: codes, secretsMayNeedOldKeys: false, keys).detail
        }
        #expect(agreed(two, nil) == "no refresh token\(end)")
        #expect(agreed(two, ("new", .valid, 1)) == "1 refresh token, all sealed with new\(end)")
        #expect(agreed(two, codes: 2, ("new", .valid, 1)) == "1 refresh token, all sealed with new\(under)")
        #expect(agreed(two, codes: 2, nil) == "no refresh token\(under)")
        #expect(agreed(two, ("old", .valid, 1)) == "1 refresh token, some with old keys (old: 1)")
        #expect(agreed(one, ("new", .valid, 1)) == "1 refresh token, all sealed with new")
        #expect(agreed(nil, nil) == "no refresh token")
        #expect(judged(two).detail == "no refresh token")
    }

    @Test("A change that waits ten seconds for its publication is a warning, and so is a restored log.")
    func publication() {
        func judged(age: Duration?, belongs: Bool = true, publisher: Int32? = nil) -> Finding {
            let state = Publication.State(
                position: 4711,
                publishedAt: now,
                age: age,
                belongsToCluster: belongs,
                publisher: publisher
            )
            return .publication(state)
        }
        #expect(judged(age: nil) == .pass(.publication, "position 4711; nothing waits for its publication"))
        #expect(judged(age: .seconds(10)).status == .pass)
        let held = judged(age: .seconds(120), publisher: 99)
        #expect(held.status == .warn && held.detail.contains("99 has locked siwa.publication"), "\(held)")
        #expect(held.remedy?.contains("SELECT pg_terminate_backend(99)") == true, "\(held)")
        let free = judged(age: .seconds(120))
        #expect(free.status == .warn && free.remedy?.contains("SIWAD_EFFECTS on") == true, "\(free)")
        #expect(judged(age: nil, belongs: false).status == .warn)
    }

    @Test("Stored keys are a warning after three missed refreshes.")
    func keptKeys() {
        func judged(_ time: WallTime?) -> Finding.Status {
            Finding.keptKeys(time, refresh: .seconds(3_600), maximumAge: .seconds(86_400), now: now).status
        }
        #expect([judged(nil), judged(ago(10_800)), judged(ago(10_801))] == [.warn, .pass, .warn])
        #expect([judged(ago(86_399)), judged(ago(86_400))] == [.warn, .fail])
    }

    @Test("Open dead letters are a warning, and fail at the limit.")
    func deadLetters() {
        func judged(_ counts: [(String, Int)]) -> Finding {
            .deadLetters(.init(counts: counts, oldest: counts.isEmpty ? nil : ago(172_800)), limit: 100, now: now)
        }
        #expect(judged([]).status == .pass)
        let some = judged([("expired", 99), ("keys-unavailable", 1)])
        #expect((some.status, some.detail) == (.warn, "99 expired, 1 keys-unavailable open, the oldest for 2 d"))
        #expect(judged([("expired", 100)]).status == .fail)
        #expect(judged([("keys-unavailable", 100)]).status == .warn, "these have a limit of their own")
    }

    @Test("An app without a notification for a month is a warning.")
    func notifications() throws {
        let audiences = try AudienceMap(parsing: "AAAAAAAAAA/a,AAAAAAAAAA/b,AAAAAAAAAA/c")
        let last: [AppID: WallTime] = [AppID("a"): ago(7_200), AppID("b"): ago(31 * 86_400)]
        let findings = Finding.notifications(audiences, last: last, now: now)
        #expect(findings.map(\.subject) == ["a", "b", "c"])
        #expect(findings.map(\.status) == [.pass, .warn, .warn])
        #expect(findings[0].detail == "the last one came 2 h ago")
    }

    @Test("Differences in the schema are named, at most three.")
    func objects() {
        func catalog(_ count: Int) -> SchemaCatalog {
            SchemaCatalog(text: "postgres\t15\n" + (0..<count).map { "table\tt\($0)\tplain\n" }.joined())
        }
        func judged(_ actual: Int, _ expected: Int) -> Finding {
            .objects(SchemaDrift(of: catalog(actual), from: catalog(expected)), count: expected)
        }
        #expect(judged(3, 3).status == .pass)
        #expect(judged(3, 4).detail == "table t3 is missing")
        #expect(
            judged(1, 9).detail == "8 differences: table t1 is missing, table t2 is missing, table t3 is missing, …"
        )
        #expect((judged(4, 3).status, judged(4, 3).detail) == (.warn, "table t3 is not siwad's"))
    }

    @Test("A malformed key set fails, and an unusable key is a warning.")
    func keys() {
        #expect(Finding.keys(Array("{}".utf8), from: "u").status == .fail)
        #expect(Finding.keys(Array("<html>".utf8), from: "u").remedy == "check SIWAD_KEYS_URL")
    }

    @Test("Only status 405 with Allow: POST passes for the endpoint.")
    func endpoint() {
        func judged(_ status: Int, _ allow: String?) -> Finding {
            let answer = LocalProbe.Response(status: status, allow: allow, body: "", latency: .milliseconds(3))
            return .endpoint(answer, at: "http://127.0.0.1:8080/p")
        }
        #expect(judged(405, "POST") == .pass(.endpoint, "http://127.0.0.1:8080/p answers, in 3 ms"))
        #expect([judged(405, nil), judged(200, nil), judged(404, nil)].map(\.status) == [.fail, .fail, .fail])
        #expect(judged(404, nil).detail == "http://127.0.0.1:8080/p is not the path that is served")
    }

    @Test("Another program that answers at the address of the operations endpoint is not taken for siwad.")
    func otherProgram() {
        func judged(_ body: String) -> Finding {
            .readiness(LocalProbe.Response(status: 200, allow: nil, body: body, latency: .zero), at: "u")
        }
        #expect(judged("[+]keys ok\nreadyz check passed\n").status == .pass)
        #expect(judged("<html>ok</html>").detail == "u answers 200, but it is not siwad")
        #expect(judged("<html>ok</html>").status == .fail)
    }

    @Test("A daemon that is ready only because of its spool is a warning with the cause.")
    func spooling() {
        let body =
            "[+]database ok: PostgreSQL is unavailable; notifications wait in the spool, 9 bytes\nreadyz check passed\n"
        let finding = Finding.readiness(
            LocalProbe.Response(status: 200, allow: nil, body: body, latency: .zero),
            at: "u"
        )
        #expect(finding.status == .warn)
        #expect(finding.detail == "PostgreSQL is unavailable; notifications wait in the spool, 9 bytes")
    }

    @Test("The failed checks of /readyz are named.")
    func readiness() {
        let body =
            "[+]accepting ok\n[-]database failed: PostgreSQL can't be written to\n[-]keys failed\nreadyz check failed\n"
        let answer = LocalProbe.Response(status: 503, allow: nil, body: body, latency: .zero)
        let finding = Finding.readiness(answer, at: "u")
        #expect(finding.detail == "u answers 503: [-]database failed: PostgreSQL can't be written to, [-]keys failed")
        #expect(finding.status == .fail)
    }

    @Test("A certificate is a warning two weeks before it expires.")
    func certificate() {
        func judged(_ days: Int64) -> Finding {
            .certificate(validUntil: now.wholeSeconds + days * 86_400, now: now)
        }
        #expect([judged(14), judged(13), judged(0), judged(-1)].map(\.status) == [.pass, .warn, .fail, .fail])
        #expect(judged(13).detail == "it expires in 13 d")
        #expect(judged(14).detail == "valid until 2026-10-05")
        for days in [14, 13, -1] as [Int64] {
            let expiry = now.wholeSeconds + days * 86_400
            let finding = Finding.certificate(validUntil: expiry, now: now, subject: "application endpoint")
            #expect(finding.status == judged(days).status)
            #expect(finding.subject == "application endpoint")
        }
    }

    @Test("The application endpoint passes if it answers as its callers are configured.")
    func application() {
        func judged(_ status: Int, hasTokens: Bool) -> Finding {
            let answer = LocalProbe.Response(status: status, allow: nil, body: "", latency: .milliseconds(2))
            return .application(answer, at: "unix:/a", hasTokens: hasTokens)
        }
        #expect(judged(401, hasTokens: true) == .pass(.application, "unix:/a answers, in 2 ms; callers need a token"))
        #expect(judged(200, hasTokens: false).status == .pass)
        #expect([judged(200, hasTokens: true), judged(401, hasTokens: false)].map(\.status) == [.warn, .warn])
        #expect([judged(404, hasTokens: true), judged(503, hasTokens: false)].map(\.status) == [.fail, .fail])
    }

    @Test("Waiting files in the spool are a warning, and fail close to the limit.")
    func spool() {
        var contents = SpoolContents()
        #expect(Finding.spool(contents, limit: 1_000, now: now) == .pass(.spool, "empty"))
        contents.waiting = .init(files: 1, bytes: 799, oldest: ago(120))
        let waiting = Finding.spool(contents, limit: 1_000, now: now)
        #expect((waiting.status, waiting.detail) == (.warn, "1 file waiting, 799 B, the oldest for 2 min"))
        contents.waiting.bytes = 800
        #expect(Finding.spool(contents, limit: 1_000, now: now).status == .fail)
        contents.setAside = 2
        #expect(Finding.spool(contents, limit: 1_000, now: now).detail.hasPrefix("2 files set aside"))
        contents.untrusted = 1
        #expect(Finding.spool(contents, limit: 1_000, now: now).status == .fail)
        #expect(Finding.spool(contents, limit: 1_000, now: now).detail.hasPrefix("1 file not read"))
        contents.forged = 3
        let forged = Finding.spool(contents, limit: 1_000, now: now)
        #expect(forged.detail.hasPrefix("3 notifications with a bad signature"))
        #expect(Finding.disk(free: 2 << 30, spoolLimit: 1 << 30, used: 0).status == .pass)
        #expect(Finding.disk(free: 1 << 29, spoolLimit: 1 << 30, used: 0).status == .warn)
        #expect(Finding.disk(free: 1 << 29, spoolLimit: 1 << 30, used: 1 << 29).status == .pass)
        #expect(Finding.disk(free: 1 << 20, spoolLimit: 1 << 30, used: 0).status == .fail)
    }

    @Test("Forged and untrusted files are not counted as waiting.")
    func untrusted() throws {
        let directory = try TemporaryDirectory()
        for name in [".siwad-spool", "1.spool", "2.spool", "3.spool.0.forged", "4.spool.corrupt"] {
            try directory.write([1], to: name)
        }
        chmod(directory.file("2.spool"), 0o622)
        let contents = try #require(SpoolContents(directory: directory.path))
        #expect(contents.waiting.files == 1)
        #expect((contents.untrusted, contents.forged, contents.setAside) == (1, 1, 1))
    }

    @Test("Refused notifications are a separate finding, and count towards the limit.")
    func refused() {
        var contents = SpoolContents()
        #expect(Finding.refused(contents, limit: 1_000, now: now) == nil)
        contents.refused = .init(files: 2, bytes: 700, oldest: ago(7_200))
        let refused = Finding.refused(contents, limit: 1_000, now: now)
        #expect(refused?.status == .warn)
        #expect(refused?.detail == "PostgreSQL refuses 2 notifications (….refused.spool), 700 B, the oldest for 2 h")
        #expect(Finding.spool(contents, limit: 1_000, now: now) == .pass(.spool, "nothing else waits"))
        contents.waiting = .init(files: 1, bytes: 100, oldest: ago(120))
        #expect(Finding.refused(contents, limit: 1_000, now: now)?.status == .fail)
        #expect(Finding.spool(contents, limit: 1_000, now: now).status == .fail)
    }

    @Test("A command failure becomes detail and remedy.")
    func failures() {
        let failure = CommandFailure(.unavailable, "cannot connect: check that PostgreSQL runs there")
        let finding = Finding.fail(.database, failure)
        #expect((finding.detail, finding.remedy) == ("cannot connect", "check that PostgreSQL runs there"))
    }

    @Test("A cause with colons and semicolons is not split.")
    func colons() {
        let text = "connection to server at \"db\", port 5432 failed: FATAL: no pg_hba.conf entry; see the log"
        let refused = PostgresError(.connectionFailed, text, sqlState: SQLState(rawValue: "28000"))
        let url = WebClientError(.unreachable, "cannot reach https://a: connection refused; check the network")
        for (error, detail, remedy) in [
            (refused, text, "check user and password in SIWAD_DATABASE_URL"),
            (url, "cannot reach https://a: connection refused", "check the network"),
        ] as [(any Error, String, String)] {
            let finding = Finding.fail(.database, Checkup.failure(error))
            #expect((finding.detail, finding.remedy) == (detail, remedy))
        }
    }
}

@Suite("The report of siwad doctor")
struct ReportTests {
    private let report = Report([
        .warn(
            .notifications,
            "none is among the latest",
            "see that the URL is entered for this App ID at developer.apple.com; Apple never says when it is not",
            subject: "com.example.app"
        ),
        .fail(.database, "cannot connect to host=/run/postgresql port=5432", "check that PostgreSQL runs there"),
        .pass(.configuration, "1 app group of 1 team with 2 client ids"),
    ])

    @Test("has one line for each check, in their order, in a pipe.")
    func pipe() {
        #expect(
            report.lines(style: .plain) == [
                "✓ configuration   1 app group of 1 team with 2 client ids",
                "✗ database        cannot connect to host=/run/postgresql port=5432: check that PostgreSQL runs there",
                "⚠ notifications   com.example.app: none is among the latest: see that the URL is entered for this App "
                    + "ID at developer.apple.com; Apple never says when it is not",
            ]
        )
    }

    @Test("fits 80 columns of a terminal.")
    func terminal() {
        let lines = report.lines(style: OutputStyle(width: 80, usesColor: false))
        #expect(lines.count == 6)
        for line in lines { #expect(VisibleText.width(line) <= 80, "\(line)") }
    }

    @Test("fails for failed checks but not for warnings, and has one JSON object for each check.")
    func json() {
        #expect(!report.isPassed)
        #expect(Report(report.findings.filter { $0.status == .warn }).isPassed)
        #expect(
            report.json[0].line
                == #"{"check":"configuration","subject":null,"status":"pass","#
                + #""detail":"1 app group of 1 team with 2 client ids","remedy":null}"#
        )
    }
}

@Suite("Quantities in reports")
struct QuantityTests {
    @Test("are printed in a readable unit.")
    func units() {
        let sizes: [Int64] = [0, 1_023, 1_024, 1_536, 10 << 20, 5 << 30]
        #expect(sizes.map { "\(ByteCount($0))" } == ["0 B", "1023 B", "1 KiB", "1.5 KiB", "10 MiB", "5 GiB"])
        let times: [Int] = [-1, 119, 120, 7_199, 7_200, 172_799, 172_800]
        #expect(
            times.map { Duration.seconds($0).rounded } == ["0 s", "119 s", "2 min", "119 min", "2 h", "47 h", "2 d"]
        )
        #expect([counted(1, "key"), counted(2, "key")] == ["1 key", "2 keys"])
    }

    @Test("of an HTTP date are parsed in the format of RFC 9110.")
    func httpDate() {
        #expect(WallTime(httpDate: "Sun, 06 Nov 1994 08:49:37 GMT")?.iso8601 == "1994-11-06T08:49:37.000Z")
        #expect(WallTime(httpDate: "Fri, 02 Oct 2026 00:00:00 GMT")?.iso8601 == "2026-10-02T00:00:00.000Z")
        let others = [
            "", "Sunday, 06-Nov-94 08:49:37 GMT", "Sun Nov  6 08:49:37 1994", "Sun, 32 Nov 1994 08:49:37 GMT",
        ]
        for text in others { #expect(WallTime(httpDate: text) == nil) }
    }
}
