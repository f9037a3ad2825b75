import ArgumentParser

/// Dead letters looked through by every kind of filter, as they lie right after they came and after a vacuum.
struct LettersCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "letters",
        abstract: "Milliseconds that siwad takes to list and count a million dead letters.",
        usage: "Benchmarks letters <options>",
        discussion: "Each is a run of the command, from its start to its end; the median of --rounds counts."
    )

    @OptionGroup var options: BenchmarkOptions

    @Option(help: "Dead letters in the database.")
    var letters = 1_000_000

    /// What is asked for. Of the filters that nothing matches every letter has to be looked at.
    private static let questions = [
        "list", "list --reason expired", "list --app com.example.app3", "list --app com.example.none",
        "list --type consent-revoked", "list --type none", "list --sub person7", "list --until 2026-01-01T00:10:00Z",
        "list --since 2027-01-01", "list --status discarded", "stats", "stats --by app", "stats --by type",
        "stats --app com.example.app3",
    ]

    func run() async throws {
        try await Workbench.with(options) { bench in
            try await bench.run("DROP DATABASE IF EXISTS letters WITH (FORCE)")
            try await bench.run("CREATE DATABASE letters")
            try await bench.migrate("letters")
            // As letters lie that came just now: no vacuum has been there, and the planner knows nothing of them.
            try await bench.run("ALTER TABLE siwa.dead_letters SET (autovacuum_enabled = off)", on: "letters")
            Progress.note("making \(letters) dead letters")
            try await bench.run(Self.fill(letters), on: "letters")
            try await bench.run("CHECKPOINT")
            Progress.note("as they came")
            let fresh = try await measure(bench)
            Progress.note("after VACUUM ANALYZE")
            try await bench.run("VACUUM ANALYZE siwa.dead_letters", on: "letters")
            let vacuumed = try await measure(bench)
            var report = Report(["siwad dead-letters", "as they came, ms", "vacuumed, ms"])
            for (question, (fresh, vacuumed)) in zip(Self.questions, zip(fresh, vacuumed)) {
                report.append([.text(question), .number(fresh, decimals: 0), .number(vacuumed, decimals: 0)])
            }
            report.print(asJSON: options.json)
            try await bench.run("DROP DATABASE letters WITH (FORCE)")
        }
    }

    private func measure(_ bench: Workbench) async throws -> [Double] {
        let clock = ContinuousClock()
        var medians: [Double] = []
        for question in Self.questions {
            var taken: [Double] = []
            for _ in 0..<options.rounds {
                let arguments = ["dead-letters"] + question.split(separator: " ").map(String.init) + ["--json"]
                let start = clock.now
                // It ends with 4 where nothing matches.
                _ = try? await output(
                    of: bench.siwad,
                    arguments,
                    environment: ["SIWAD_DATABASE_URL": bench.conninfo("letters")]
                )
                taken.append((clock.now - start) / .milliseconds(1))
            }
            medians.append(taken.median)
        }
        return medians
    }

    /// Letters of a month, two and a half seconds apart, from twenty apps and a hundred thousand people, each with a body
    /// as long as a notification's.
    private static func fill(_ count: Int) -> String {
        """
        INSERT INTO siwa.dead_letters
            (received_at, last_received_at, reason, detail, body, token_digest, jti, aud, sub, event_type, verified_kid,
            verified_at)
        SELECT
            t, t,
            (array['unknown-audience', 'unknown-event-type', 'malformed-claims', 'expired', 'not-yet-valid'])[1 + n % 5],
            'The audience com.example.other is not configured.',
            convert_to('{"payload":"' || repeat(md5(n::text), 29) || '"}', 'UTF8'), sha256(n::text::bytea), 'jti' || n,
            'com.example.app' || n % 20, 'person' || n % 100000,
            (array['email-disabled', 'email-enabled', 'consent-revoked', 'account-deleted'])[1 + n % 4], 'key', t
        FROM (
            SELECT n, timestamptz '2026-01-01 00:00:00Z' + n * interval '2.5 s' AS t FROM generate_series(1, \(count)) AS n
        ) AS s
        """
    }
}
