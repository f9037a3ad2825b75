import TestSupport
import Testing

@Suite("Secrets of siwad endpoints", .timeLimit(.minutes(10)))
struct EndpointSecretTests {
    @Test("The secret is printed for the receiver only, and rotation ends the old one after the overlap or now.")
    func secrets() async throws {
        try await DaemonFixture.with { fixture in
            try await fixture.endpoints("add shop --url \(DaemonFixture.receiverURL) --signature both")
            let first = try await fixture.endpoints("secret shop").lines.map(String.init)
            #expect(first.count == 2 && first[0].hasPrefix("whsec_") && first[1].hasPrefix("whpk_"))
            let before = try await fixture.texts("SELECT revision::text FROM siwa.endpoints")
            try await fixture.endpoints("rotate shop --overlap 1h")
            let second = try await fixture.endpoints("secret shop").lines.map(String.init)
            #expect(second[0] != first[0] && second[1] != first[1])
            #expect(try await fixture.texts("SELECT revision::text FROM siwa.endpoints") != before)
            let live = """
                SELECT concat_ws(' ', purpose, generation, round(extract(epoch FROM expires_at - now()) / 60))
                FROM siwa.endpoint_secrets WHERE expires_at IS NULL OR expires_at > now() ORDER BY 1
                """
            #expect(try await fixture.texts(live) == ["ed25519 1 60", "ed25519 2", "hmac 1 60", "hmac 2"])
            try await fixture.endpoints("rotate shop --now")
            #expect(try await fixture.texts(live) == ["ed25519 3", "hmac 3"])

            try await TemporaryDirectory.with { directory in
                let file = try directory.write("secret", second[0] + "\n")
                try await fixture.endpoints("rotate shop --secret-file \(file)")
                #expect(try await fixture.endpoints("secret shop").lines.first == second[0][...])
                let malformed = try directory.write("malformed", "whsec_c2hvcnQ=\n")
                let run = try await fixture.attemptEndpoints([
                    "rotate", "shop", "--secret-file", malformed, "--note", "x",
                ])
                #expect(run.status == 1 && !run.errors.contains("c2hvcnQ"), "\(run.errors)")
            }
            let both = try await fixture.attemptEndpoints(["rotate", "shop", "--now", "--overlap", "1h", "--note", "x"])
            #expect(both.status == 64)
        }
    }

    @Test("The listing shows the fingerprint of a secret that signs, also after the kind of signature was changed.")
    func fingerprint() async throws {
        try await DaemonFixture.with { fixture in
            try await fixture.endpoints("add shop --url \(DaemonFixture.receiverURL)")
            for (signature, purpose) in [("ed25519", "ed25519"), ("both", "hmac"), ("hmac", "hmac")] {
                try await fixture.endpoints("edit shop --signature \(signature)")
                let known = "SELECT fingerprint FROM siwa.endpoint_secrets WHERE purpose = '\(purpose)'"
                let fingerprint = try #require(try await fixture.texts(known).first)
                for command in ["list --json", "show shop --json"] {
                    let run = try await fixture.endpoints(command)
                    let member = "\"secret_fingerprint\":\"\(fingerprint)\""
                    #expect(run.output.contains(member), "\(signature): \(run.output)")
                }
            }
        }
    }

    @Test("A sealed row that was altered, or copied to another endpoint, opens nothing.")
    func swappedRows() async throws {
        try await DaemonFixture.with { fixture in
            try await fixture.endpoints("add one --url \(DaemonFixture.receiverURL)")
            try await fixture.endpoints("add two --url \(DaemonFixture.receiverURL)")
            try await fixture.run(
                """
                UPDATE siwa.endpoint_secrets AS s SET sealed = (
                    SELECT sealed FROM siwa.endpoint_secrets JOIN siwa.endpoints USING (endpoint_id) WHERE name = 'one'
                )
                FROM siwa.endpoints AS e WHERE e.endpoint_id = s.endpoint_id AND e.name = 'two'
                """
            )
            let swapped = try await fixture.attemptEndpoints(["secret", "two"])
            #expect(swapped.status == 78 && swapped.output.isEmpty && swapped.errors.contains("rotate two --now"))
            // To A, or to B where it is A.
            try await fixture.run(
                """
                UPDATE siwa.endpoint_secrets
                SET sealed = set_byte(sealed, 100, CASE get_byte(sealed, 100) WHEN 65 THEN 66 ELSE 65 END)
                """
            )
            #expect(try await fixture.attemptEndpoints(["secret", "one"]).status == 78)
            let other = ["SIWAD_SEALING_KEYS": "other:\(String(repeating: "Q", count: 43))="]
            #expect(try await fixture.attemptEndpoints(["secret", "one"], other).status == 78)
            try await fixture.endpoints("rotate one --now")
            try await fixture.endpoints("secret one")
        }
    }

    @Test("No command but secret prints a secret or the query of a URL, and no table has one in clear text.")
    func hiddenSecrets() async throws {
        try await DaemonFixture.with { fixture in
            try await fixture.endpoints(
                "add shop --url \(DaemonFixture.receiverURL) --signature both --type consent.authorized"
            )
            try await Changes.publish(1, in: fixture)
            let secret = String(try await fixture.endpoints("secret shop").lines[0].dropFirst("whsec_".count))
            var texts = ""
            for line in [
                "endpoints list", "endpoints list --json", "endpoints show shop", "endpoints show shop --json",
                "endpoints pause shop --note x", "endpoints rotate shop --note x", "audit list --wide", "doctor",
                "deliveries list --status any", "deliveries show shop/1 --json", "changes show 1", "config",
                "endpoints seek shop --position 9 --note x", "endpoints test shop", "migrate status",
            ] {
                let run = try await siwad(
                    line.split(separator: " ").map(String.init),
                    environment: fixture.environment(Sealing.settings)
                )
                texts += run.output + run.errors
            }
            for table in ["endpoints", "endpoint_states", "endpoint_secrets", "deliveries", "operator_actions"] {
                let columns = table == "endpoints" ? "t.name, t.types" : "t"
                texts += try await fixture.texts("SELECT row(\(columns))::text FROM siwa.\(table) AS t").joined()
            }
            #expect(!texts.contains(secret) && !texts.contains("whsec_") && !texts.contains("whsk_"))
            #expect(!texts.contains("hidden-in-the-query"))
            #expect(!texts.contains(Sealing.key))
        }
    }
}
