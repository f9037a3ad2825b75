import TestSupport
import Testing

@Suite("siwad endpoints apply", .timeLimit(.minutes(10)))
struct EndpointFileTests {
    /// Every row that the command could write, with the transaction that wrote it last.
    private func content(_ fixture: DaemonFixture) async throws -> [String] {
        try await fixture.texts(
            """
            SELECT 'endpoint ' || r.xmin || r::text FROM siwa.endpoints AS r
            UNION ALL SELECT 'state ' || r.xmin || r::text FROM siwa.endpoint_states AS r
            UNION ALL SELECT 'secret ' || r.xmin || r::text FROM siwa.endpoint_secrets AS r
            UNION ALL SELECT 'action ' || r.xmin || r::text FROM siwa.operator_actions AS r
            UNION ALL SELECT 'delivery ' || r.xmin || r::text FROM siwa.deliveries AS r
            ORDER BY 1
            """
        )
    }

    @Test("apply makes the table say what the file says, once; a dry run changes nothing; --prune removes the rest.")
    func apply() async throws {
        try await DaemonFixture.with { fixture in
            try await TemporaryDirectory.with { directory in
                let flow = try directory.write(
                    "flow.yaml",
                    """
                    endpoints:
                      shop: {url: https://shop.example.com/hooks/siwa, types: [siwa.consent.revoked, siwa.account.deleted], apps: [com.example.one], ordering: person}
                      crm:  # block style
                        url: "https://crm.example.com/hooks"
                        types:
                          - email.forwarding_disabled
                        timeout: 5s

                    """
                )
                let dry = try await fixture.endpoints("apply \(flow) --dry-run")
                #expect(
                    dry.lines.map { $0.split(separator: " ").prefix(2).joined(separator: " ") } == [
                        "NAME OUTCOME", "shop added", "crm added",
                    ]
                )
                #expect(try await content(fixture).isEmpty)
                try await fixture.endpoints("apply \(flow)")
                let rows = """
                    SELECT concat_ws(' ', name, url, types, apps, ordering, timeout) FROM siwa.endpoints ORDER BY name
                    """
                let expected = [
                    "crm https://crm.example.com/hooks {siwa.email.forwarding_disabled} attempt 00:00:05",
                    "shop https://shop.example.com/hooks/siwa {siwa.consent.revoked,siwa.account.deleted} {com.example.one} person 00:00:15",
                ]
                #expect(try await fixture.texts(rows) == expected)
                try await fixture.endpoints("pause crm")
                try await fixture.revoke(2)
                try await fixture.run("SELECT siwa.publish_changes()")
                #expect(try await fixture.deliveries() == ["shop pending 2"])
                let applied = try await content(fixture)
                let again = try await fixture.endpoints("apply \(flow) --json")
                #expect(
                    again.lines.allSatisfy { $0.hasSuffix(#""outcome":"unchanged","changed":[]}"#) },
                    "\(again.output)"
                )
                #expect(try await content(fixture) == applied)

                let json = try directory.write(
                    "less.json",
                    """
                    {
                      "endpoints": {
                        "crm": {"url": "https://crm.example.com/hooks", "timeout": "9s"}
                      }
                    }
                    """
                )
                let kept = try await fixture.endpoints("apply \(json)")
                #expect(kept.output.contains("types, timeout") && kept.errors.contains("--prune removes it"))
                #expect(try await fixture.texts("SELECT name FROM siwa.endpoints").count == 2)
                let edited = try await content(fixture)
                let rehearsed = try await fixture.endpoints("apply \(json) --prune --dry-run --json")
                #expect(rehearsed.lines.count == 2 && rehearsed.output.contains(#""outcome":"removed""#))
                #expect(try await content(fixture) == edited)
                try await fixture.endpoints("apply \(json) --prune")
                #expect(try await fixture.texts("SELECT name || ' ' || status FROM siwa.endpoints") == ["crm paused"])
                #expect(
                    try await fixture.texts(
                        "SELECT name FROM siwa.endpoint_secrets JOIN siwa.endpoints USING (endpoint_id)"
                    ) == ["crm"]
                )
                #expect(try await fixture.audit().last == "endpoints apply: remove shop: why")
                #expect(try await fixture.deliveries().isEmpty)
                let pruned = try await content(fixture)
                try await fixture.endpoints("apply \(json) --prune")
                #expect(try await content(fixture) == pruned)
            }
        }
    }

    @Test("apply --prune that fails says which endpoints it removed, and which are still there.")
    func failingPrune() async throws {
        try await DaemonFixture.with { fixture in
            for name in ["crm", "shop", "web"] {
                try await fixture.endpoints("add \(name) --url https://a.example --type consent.authorized")
                if name == "crm" { try await fixture.endpoints("pause crm") }
            }
            try await Changes.publish(2, in: fixture)
            try await fixture.run(
                """
                DELETE FROM siwa.deliveries AS d USING siwa.endpoints AS e
                WHERE d.endpoint_id = e.endpoint_id AND e.name = 'crm';
                CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS $$
                BEGIN
                    RAISE EXCEPTION 'refused';
                END
                $$;
                CREATE TRIGGER refuse BEFORE DELETE ON siwa.deliveries FOR EACH ROW EXECUTE FUNCTION public.refuse();
                """
            )
            try await TemporaryDirectory.with { directory in
                let file = try directory.write("endpoints.yaml", "endpoints: {}\n")
                let run = try await fixture.attemptEndpoints(["apply", file, "--prune", "--json", "--note", "why"])
                #expect(run.status == 1, "\(run.errors)")
                let outcomes = [("crm", "removed"), ("shop", "kept"), ("web", "kept")]
                #expect(
                    run.lines == outcomes.map { #"{"name":"\#($0)","outcome":"\#($1)","changed":[]}"# },
                    "\(run.output)"
                )
                #expect(run.errors.hasPrefix("shop is paused, and 0 of its deliveries are deleted"), "\(run.errors)")
                #expect(run.errorLines.count == 2, "\(run.errors)")
            }
            #expect(try await fixture.texts("SELECT name FROM siwa.endpoints ORDER BY name") == ["shop", "web"])
        }
    }

    @Test(
        "apply refuses a file with a mistake, names its line, and changes nothing.",
        arguments: [
            ("endpoints:\n  shop:\n    url: https://a.example\n    colour: red\n", ":4: colour is not a key"),
            ("endpoints:\n  shop: {url: https://a.example, secret: whsec_abc}\n", ":2: secret is not a key"),
            ("endpoints:\n  shop:\n    url: https://a.example\n    url: https://b.example\n", ":4: url is set twice"),
            ("endpoints:\n  shop:\n    timeout: 5s\n", ":2: shop has no url"),
            ("endpoints:\n  shop:\n    url: https://u:p@a.example\n", ":3: url: "),
            ("endpoints:\n", ":1: the key endpoints has no value"),
            ("endpoints:\n  Shop:\n    url: https://a.example\n", ":2: name an endpoint"),
            (
                "endpoints:\n  a:\n    url: https://a.example\n    types: [nothing]\n",
                ":4: types: nothing is not a type"
            ),
            ("endpoints:\n  a:\n    url: https://a.example\n    types: []\n", ":4: types: write a value"),
            ("endpoints:\n  a:\n    url: https://a.example\n    timeout: [1s, 2s]\n", ":4: timeout: write one value"),
            ("endpoints:\n  a: {url: https://a.example\n", ":3"), ("endpoints: &x\n", ":1:"),
            ("endpoints:\n  a:\n    url: >\n      https://a.example\n", ":3:"),
            ("endpoints:\n  a:\n\turl: https://a.example\n", ":3"), ("other: 1\n", ":1: write the endpoints below"),
            ("endpoints:\n  a:\n    url: https://a.example\n   rate: 1\n", ":4"), ("- a\n", ":1"),
            ("{\"endpoints\": {\"a\": {\"url\": \"https://a.example\"} \"b\": 1}}", ":1:"),
        ]
    )
    func malformedFile(text: String, message: String) async throws {
        try await DaemonFixture.with { fixture in
            try await TemporaryDirectory.with { directory in
                let file = try directory.write("endpoints.yaml", text)
                let run = try await fixture.attemptEndpoints(["apply", file, "--note", "x"])
                #expect(run.status == 78 && run.errors.contains("endpoints.yaml\(message)"), "\(run.errors)")
                #expect(!run.errors.contains("whsec_") && !run.errors.contains("u:p"))
                #expect(try await fixture.texts("SELECT name FROM siwa.endpoints").isEmpty)
            }
        }
    }
}
