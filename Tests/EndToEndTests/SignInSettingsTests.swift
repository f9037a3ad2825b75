import JOSE
import Testing

@Suite("The settings of sign-ins at a daemon", .timeLimit(.minutes(10)))
struct SignInSettingsTests {
    @Test("A daemon that signs people in and can't read SIWAD_DELIVERY_CA ends with 78 and one line.")
    func unreadableAuthorities() async throws {
        let run = try await siwad(
            ["serve"],
            environment: [
                "SIWAD_DATABASE_URL": "host=/nowhere", "SIWAD_APPS": DaemonFixture.apps,
                "SIWAD_APPLICATION_LISTEN": "unix:/nowhere/application.sock",
                "SIWAD_DELIVERY_CA": "/nowhere/ca.pem", "SIWAD_LOG_FORMAT": "text",
            ]
        )
        #expect(run.status == 78)
        #expect(run.errors.split(separator: "\n").count == 1, "\(run.errors)")
        #expect(run.errors.contains("SIWAD_DELIVERY_CA: /nowhere/ca.pem is not a readable PEM file"), "\(run.errors)")
    }

    @Test("A token that is older than SIWAD_IDENTITY_TOKEN_AGE is refused before Apple is asked.")
    func identityTokenAge() async throws {
        try await SigningFixture.with { fixture in
            _ = try await fixture.ready("a", ["SIWAD_IDENTITY_TOKEN_AGE": "60s"])
            _ = try await fixture.ready("b")
            let request = try await fixture.device(members: #","age":90"#).request(session: "s1")
            let refused = try await fixture.post(request, to: "a")
            #expect(refused.status == 422 && refused.reason == "token-too-old", "\(refused.body)")
            #expect(try await fixture.tokenRequests() == 0)
            let answer = try await fixture.post(request, to: "b")
            #expect(answer.status == 200 && answer.member("refresh_token")?.string == "stored", "\(answer.body)")
        }
    }

    @Test("Whatever SIWAD_CLOCK_LEEWAY allows, a token more than five minutes ahead is refused before Apple is asked.")
    func clockLeeway() async throws {
        try await SigningFixture.with { fixture in
            _ = try await fixture.ready("a", ["SIWAD_CLOCK_LEEWAY": "10m"])
            try await fixture.control("advance", #"{"seconds":400}"#)
            for hasCode in [true, false] {
                let request = try await fixture.device().request(session: "s1", code: hasCode)
                let refused = try await fixture.post(request, to: "a")
                #expect(refused.status == 422 && refused.reason == "not-yet-valid", "\(refused.body)")
            }
            #expect(try await fixture.tokenRequests() == 0)
            #expect(try await fixture.daemons.texts("SELECT 1::text FROM siwa.sign_ins").isEmpty)
        }
    }

    @Test("Client secrets are valid for SIWAD_CLIENT_SECRET_LIFETIME, which the log of a refused client names.")
    func clientSecretLifetime() async throws {
        try await SigningFixture.with { fixture in
            let brief = try await fixture.ready("a", ["SIWAD_CLIENT_SECRET_LIFETIME": "1m"])
            _ = try await fixture.ready("b")
            // At Apple, a client secret of a minute has expired by then, and one of five minutes has not.
            try await fixture.control("advance", #"{"seconds":150}"#)
            let refused = try await fixture.post(fixture.device().request(session: "s1"), to: "a")
            #expect(refused.status == 200 && refused.member("refresh_token")?.string == "refused", "\(refused.body)")
            #expect(refused.member("refresh_token_error")?.string == "invalid_client", "\(refused.body)")
            try await eventually("the report") {
                brief.log.contains {
                    $0.contains("Apple refuses the client") && $0.contains(#""secret_lifetime":"60 s""#)
                }
            }
            let stored = try await fixture.post(fixture.device().request(session: "s2"), to: "b")
            #expect(stored.status == 200 && stored.member("refresh_token")?.string == "stored", "\(stored.body)")
        }
    }

    @Test("With SIWAD_KEEP_NAMES=false, the first answer has the name, and neither a row nor a later answer has it.")
    func keepNames() async throws {
        try await SigningFixture.with { fixture in
            let name = #","user":{"name":{"firstName":"Ada","lastName":"Lovelace"}}}"#
            let names = "SELECT given || ' ' || family FROM siwa.kept_names"
            for (daemon, keeps) in [("a", "false"), ("b", "true")] {
                _ = try await fixture.ready(daemon, ["SIWAD_KEEP_NAMES": keeps])
                let first: String = try await fixture.device().request(session: "\(daemon)1").dropLast() + name
                let answer = try await fixture.post(first, to: daemon)
                #expect(answer.status == 200 && answer.member("name")?["given"]?.string == "Ada", "\(answer.body)")
                #expect(try await fixture.daemons.texts(names) == (keeps == "true" ? ["Ada Lovelace"] : []))
                let later = try await fixture.post(fixture.device().request(session: "\(daemon)2"), to: daemon)
                let given = later.member("name")?["given"]?.string
                #expect(later.status == 200 && given == (keeps == "true" ? "Ada" : nil), "\(later.body)")
            }
            // The name that the other daemon has stored is in the database.
            let hidden = try await fixture.post(fixture.device().request(session: "a3"), to: "a")
            #expect(hidden.status == 200 && hidden.member("name") == .null, "\(hidden.body)")
        }
    }

    @Test(
        "A caller acts for the client ids of its line only, and refusals by the head or size of a request are counted."
    )
    func callers() async throws {
        try await SigningFixture.with { fixture in
            let lines = ["one", "two"].map { name in
                let digest = SHA256.digest(Array("token-of-\(name)".utf8).span)
                let hexadecimal = digest.map { ($0 < 16 ? "0" : "") + String($0, radix: 16) }.joined()
                return "\(name) \(hexadecimal) com.example.\(name)"
            }
            let daemon = fixture.start("a", ["SIWAD_APPLICATION_TOKENS": lines.joined(separator: "\n")])
            let metrics = try await daemon.ready().operations + "/metrics"
            let request = try await fixture.device().request(session: "s1")
            let large = request + String(repeating: " ", count: 65_536)
            let refusals: [(body: String, bearer: String?, status: Int, reason: String)] = [
                (request, "token-of-two", 403, "client-not-allowed"), (request, nil, 401, "unauthenticated"),
                (request, "token-of-three", 401, "unauthenticated"), (large, "token-of-one", 413, "body-too-large"),
            ]
            for (body, bearer, status, reason) in refusals {
                let refused = try await fixture.post(body, to: "a", bearer: bearer)
                #expect(refused.status == status && refused.reason == reason, "\(reason): \(refused.body)")
            }
            #expect(try await fixture.tokenRequests() == 0)
            let answer = try await fixture.post(request, to: "a", bearer: "token-of-one")
            #expect(answer.status == 200 && answer.member("refresh_token")?.string == "stored", "\(answer.body)")
            #expect(try await fixture.daemons.texts("SELECT caller FROM siwa.sign_ins") == ["one"])
            let counted = try await Web.get(metrics).body
            for (outcome, count) in Dictionary(grouping: refusals, by: { $0.reason }).mapValues(\.count) {
                #expect(counted.contains("siwad_sign_ins_total{outcome=\"\(outcome)\"} \(count)\n"), "\(outcome)")
            }
            #expect(counted.contains("siwad_sign_ins_total{outcome=\"signed-in\"} 1\n"))
        }
    }

    @Test("Without a session, the same Idempotency-Key gets the same answer at any daemon, and another one is refused.")
    func idempotencyKey() async throws {
        try await SigningFixture.with { fixture in
            for name in ["a", "b"] { _ = try await fixture.ready(name) }
            let request = try await fixture.device().request(session: nil)
            let key = "attempt-4711-of-the-backend"
            let first = try await fixture.post(request, to: "a", key: key)
            #expect(first.status == 200 && first.member("repeated") == .boolean(false), "\(first.body)")
            for name in ["b", "a"] {
                let again = try await fixture.post(request, to: name, key: key)
                #expect(again.status == 200 && again.member("repeated") == .boolean(true), "\(again.body)")
                #expect(again.member("sign_in_id") == first.member("sign_in_id"))
                for other in ["attempt-4712-of-the-backend", nil] {
                    let refused = try await fixture.post(request, to: name, key: other)
                    #expect(refused.status == 422 && refused.reason == "token-used", "\(refused.body)")
                }
            }
            let short = try await fixture.post(request, to: "a", key: "attempt")
            #expect(short.status == 400 && short.reason == "malformed-request", "\(short.body)")
            #expect(try await fixture.tokenRequests() == 1)
        }
    }
}
