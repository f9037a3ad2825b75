import ArgumentParser

struct LettersCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "letters",
        abstract: "Milliseconds that siwad takes to list and count dead letters among a million.",
        usage: "Benchmarks letters <options>",
        discussion: "Measures whole runs of the command, before and after a vacuum; reports the median of --rounds."
    )

    @OptionGroup var options: BenchmarkOptions

    @Option(help: "Dead letters in the database.")
    var letters = 1_000_000

    /// Some filters match nothing, so that siwad has to read every letter.
    private static let commands = [
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
            // Like letters that have just arrived: no vacuum yet, and no statistics for the planner.
            try await bench.run("ALTER TABLE siwa.dead_letters SET (autovacuum_enabled = off)", on: "letters")
            Progress.note("creating \(letters) dead letters")
            try await bench.run(Self.fill(letters), on: "letters")
            try await bench.run("CHECKPOINT")
            Progress.note("before a vacuum")
            let fresh = try await measure(bench)
            Progress.note("after VACUUM ANALYZE")
            try await bench.run("VACUUM ANALYZE siwa.dead_letters", on: "letters")
            let vacuumed = try await measure(bench)
            var report = Report(["siwad dead-letters", "before vacuum, ms", "after vacuum, ms"], options)
            for (command, (fresh, vacuumed)) in zip(Self.commands, zip(fresh, vacuumed)) {
                report.append([.text(command), .number(fresh, decimals: 0), .number(vacuumed, decimals: 0)])
            }
            report.print(asJSON: options.json)
            try await bench.run("DROP DATABASE letters WITH (FORCE)")
        }
    }

    private func measure(_ bench: Workbench) async throws -> [Double] {
        let clock = ContinuousClock()
        var medians: [Double] = []
        for command in Self.commands {
            var taken: [Double] = []
            for _ in 0..<options.rounds {
                let arguments = ["dead-letters"] + command.split(separator: " ").map(String.init) + ["--json"]
                let start = clock.now
                // The exit code is 4 if nothing matches.
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

    /// Letters of a month, 2.5 seconds apart, for 20 apps and 100,000 people, with bodies as long as a notification.
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
