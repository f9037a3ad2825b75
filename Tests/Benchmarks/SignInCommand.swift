import AppleSimulator
import ArgumentParser
import FoundationEssentials
import JOSE

/// What sign-ins cost, and what they cost notifications.
struct SignInCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "sign-in",
        abstract: "Sign-ins per second, and a comparison with a Python service.",
        usage: "Benchmarks sign-in <options>",
        discussion: """
            Both sides of a ratio are measured in each round, in alternation, on fresh copies of the same database. Apple's \
            token endpoint is one in this process, with prepared answers, on the same processors. The targets are for the \
            median of five rounds on an idle machine with two cores.

              exchange       sign-ins with a code, each with a session, as fast as they are answered
              steady         the same at 1,000 a second, with the delays of the answers
              notifications  notifications at a fixed rate, alone and during sign-ins at a fixed rate
              verification   sign-ins without a code, compared with a Python service (PyJWT, asyncpg) that does the same
              memory         a daemon that serves all endpoints and does nothing

            Example:
              swift run -c release Benchmarks sign-in --rounds 5
              swift run -c release Benchmarks sign-in --part verification
            """
    )

    enum Part: String, ExpressibleByArgument, CaseIterable {
        case exchange, steady, notifications, verification, memory
    }

    @OptionGroup var options: BenchmarkOptions

    @Option(help: "People in the database, with three sessions each.")
    var people = 100_000

    @Option(help: "Requests to sign; a run uses each once.")
    var signIns = 30_000

    @Option(help: "Sign-ins a second next to notifications.")
    var signInRate = 1_000

    @Option(help: "Notifications a second next to sign-ins.")
    var rate = 2_000

    @Option(parsing: .unconditionalSingleValue, help: "Measure only this part; repeatable.")
    var part: [Part] = []

    func run() async throws {
        try await Workbench.with(options) { bench in
            let count = max(10_000, rate * options.seconds)
            // Of the first half of the people: who revoked the consent could not sign in.
            let tokens = try await Tokens.minted(count, people: people / 2, in: bench.directory)
            let apple = try await Tokens.signer(in: bench.directory, keySet: tokens.keySet)
            let signIns = try await SignInTokens.minted(signIns, people: people, with: apple, in: bench.directory)
            let key = "\(bench.directory)/AuthKey_BENCHMARK1.p8"
            _ = try await output(
                of: "openssl",
                ["genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-out", key]
            )
            try await bench.siwadDatabase(people: people)
            let measured = SignInBench(
                bench: bench,
                tokens: tokens,
                signIns: signIns,
                key: key,
                sealingKeys: try SealingKeys.newLine(name: "benchmark"),
                command: self
            )
            var report = Report(Report.figureColumns, options)
            try await TokenEndpoint.with(signIns.answers) {
                for part in part.isEmpty ? Part.allCases : part {
                    for figure in try await measured.figures(of: part) { report.append(figure) }
                }
            }
            report.print(asJSON: options.json)
        }
    }
}

private struct SignInBench {
    let bench: Workbench
    let tokens: Tokens
    let signIns: SignInTokens
    let key: String
    let sealingKeys: String
    let command: SignInCommand

    private var rounds: Int { command.options.rounds }

    func figures(of part: SignInCommand.Part) async throws -> [[Report.Value]] {
        switch part {
        case .exchange: try await exchange()
        case .steady: try await steady()
        case .notifications: try await notifications()
        case .verification: try await verification()
        case .memory: try await memory()
        }
    }

    /// siwad with all its endpoints.
    private var siwad: Service {
        let digest = SHA256.digest(Array(SignInTokens.bearer.utf8).span)
        let hexadecimal = digest.map { ($0 < 16 ? "0" : "") + String($0, radix: 16) }.joined()
        return .siwad(
            bench,
            tokens: tokens,
            settings: [
                "SIWAD_APPLICATION_LISTEN": "127.0.0.1:18096",
                "SIWAD_APPLICATION_TOKENS": "benchmark \(hexadecimal)",
                "SIWAD_APPLE_URL": TokenEndpoint.url,
                "SIWAD_APPLE_KEYS": "\(Population.team)/BENCHMARK1=\(key)",
                "SIWAD_SEALING_KEYS": sealingKeys,
                // A run takes longer than the ten minutes for which a token is accepted otherwise.
                "SIWAD_IDENTITY_TOKEN_AGE": "1d",
            ]
        )
    }

    /// The same service, measured at its application endpoint.
    private var signInService: Service {
        var service = siwad
        service.url = "http://127.0.0.1:18096/v1/sign-in"
        return service
    }

    private func load(_ name: String, _ service: Service, base: String, _ bodies: String) -> LoadCase {
        LoadCase(
            name: name,
            service: service,
            base: base,
            bodies: bodies,
            connections: command.options.connections,
            bearer: SignInTokens.bearer
        )
    }

    private var base: String { bench.siwadBase(command.people) }

    // MARK: - The parts

    private func exchange() async throws -> [[Report.Value]] {
        let cases = [load("sign-ins with a code", signInService, base: base, signIns.withCode)]
        let runs = try await bench.rounds(rounds, of: cases, seconds: command.options.seconds).map { $0[0] }
        let stored = try await bench.run(
            "SELECT count(*)::text FROM siwa.sign_ins WHERE refresh = 'stored'",
            on: signInService.database
        )
        guard stored.flatMap({ Int($0) }) ?? 0 >= runs.last?.count ?? 0 else {
            throw BenchmarkError("not every sign-in stored a refresh token: see the log of siwad")
        }
        return [
            Report.figure("exchange: sign-ins a second", runs.map(\.rate), "≥ 1000"),
            Report.figure("exchange: ms, p50", runs.map(\.median), ""),
            Report.figure("exchange: ms, p99", runs.map(\.p99), "≤ 50"),
            Report.figure("exchange: siwad µs for a sign-in", runs.map(\.serviceMicroseconds), ""),
            Report.figure("exchange: PostgreSQL µs for a sign-in", runs.map(\.serverMicroseconds), ""),
        ]
    }

    private func steady() async throws -> [[Report.Value]] {
        let rate = 1_000
        var runs: [LoadResult] = []
        for round in 1...rounds {
            try await bench.copy(base, to: siwad.database)
            let result = try await siwad.running { _ in
                try await bench.run("CHECKPOINT")
                return try await signInsAtFixedRate(rate)
            }
            Progress.note("\(rate) sign-ins a second, round \(round) of \(rounds): p99 \(result.latencies.p99) ms")
            runs.append(result)
        }
        let name = "steady: \(rate) sign-ins a second"
        return [
            Report.figure("\(name), answered", runs.map(\.rate), ""),
            Report.figure("\(name), ms, p50", runs.map(\.latencies.median), ""),
            Report.figure("\(name), ms, p99", runs.map(\.latencies.p99), "≤ 50"),
        ]
    }

    private func notifications() async throws -> [[Report.Value]] {
        var (ratios, medians, slow): ([Double], [Double], [Double]) = ([], [], [])
        for round in 1...rounds {
            Progress.note("notifications, round \(round) of \(rounds)")
            var results: [Bool: LoadResult] = [:]
            for isBusy in round.isMultiple(of: 2) ? [true, false] : [false, true] {
                try await bench.copy(base, to: siwad.database)
                results[isBusy] = try await siwad.running { _ in
                    try await bench.run("CHECKPOINT")
                    async let others = isBusy ? signInsAtFixedRate(command.signInRate) : nil
                    let result = try await OpenLoop(
                        connections: command.options.connections,
                        rate: Double(command.rate),
                        seconds: command.options.seconds
                    ).post(tokens.genuine, to: siwad.url)
                    _ = try await others
                    return result
                }
            }
            guard let busy = results[true], let alone = results[false] else { continue }
            guard busy.failures + busy.refusals == 0 else { throw BenchmarkError("siwad refused notifications") }
            ratios.append(busy.rate / alone.rate)
            medians.append(busy.latencies.median / alone.latencies.median)
            slow.append(busy.latencies.p99)
        }
        let name = "notifications: with \(command.signInRate) sign-ins a second : alone"
        return [
            Report.figure("\(name), rate", ratios, "≥ 0.97"), Report.figure("\(name), p50", medians, ""),
            Report.figure("notifications: ms, p99, with sign-ins", slow, ""),
        ]
    }

    private func signInsAtFixedRate(_ rate: Int) async throws -> LoadResult {
        let result = try await OpenLoop(
            connections: command.options.connections,
            rate: Double(rate),
            seconds: command.options.seconds,
            bearer: SignInTokens.bearer
        ).post(signIns.withCode, to: signInService.url)
        guard result.failures + result.refusals == 0 else {
            throw BenchmarkError("siwad refused \(result.refusals) sign-ins, \(result.failures) failed")
        }
        return result
    }

    private func verification() async throws -> [[Report.Value]] {
        try await Peers.prepare(in: bench.directory, withGo: false)
        let peerBase = "sign_in_peer_\(command.people)"
        try await bench.database(peerBase) { name in
            _ = try await output(
                of: "psql",
                ["-q", "-v", "ON_ERROR_STOP=1", "-f", "\(Peers.sources)/python/sign_in.sql", bench.uri(name)]
            )
            for statement in Population.fillSignInPeer(command.people) { try await bench.run(statement, on: name) }
        }
        var best: (load: LoadCase, rate: Double)?
        for workers in [1, 2] {
            let service = Service.pythonSignIn(bench, tokens: tokens, workers: workers)
            let load = load("Python, workers: \(workers)", service, base: peerBase, signIns.withoutCode)
            let rate = try await bench.measure(load, seconds: 2).rate
            Progress.note("\(load.name): \(Report.rounded(rate, 0)) per second")
            if rate > best?.rate ?? 0 { best = (load, rate) }
        }
        guard let python = best?.load else { throw BenchmarkError("the Python service did not respond") }
        let own = load("siwad, without a code", signInService, base: base, signIns.withoutCode)
        let runs = try await bench.rounds(rounds, of: [own, python], seconds: command.options.seconds)
        return [
            Report.figure("verification: sign-ins a second", runs.map { $0[0].rate }, ""),
            Report.figure("verification: sign-ins a second, \(python.name)", runs.map { $0[1].rate }, ""),
            Report.figure("verification: siwad : Python", runs.map { $0[0].rate / $0[1].rate }, "≥ 5"),
            Report.figure(
                "verification: µs of the service, Python : siwad",
                runs.map { $0[1].serviceMicroseconds / $0[0].serviceMicroseconds },
                ""
            ),
            Report.figure("verification: ms, p99", runs.map { $0[0].p99 }, ""),
        ]
    }

    private func memory() async throws -> [[Report.Value]] {
        var resident: [Double] = []
        for _ in 1...rounds {
            try await bench.copy(base, to: siwad.database)
            resident.append(
                try await siwad.running { figures in
                    // The time in which a start ends its first background work.
                    try await Task.sleep(for: .seconds(3))
                    return figures.residentMebibytes
                }
            )
        }
        return [Report.figure("memory: MiB of an idle daemon with all endpoints", resident, "≤ 48")]
    }
}

extension Population {
    /// Statements that fill the tables of the Python service for sign-ins.
    fileprivate static func fillSignInPeer(_ count: Int) -> [String] {
        [
            """
            INSERT INTO account (apple_sub, email) SELECT \(subjectSQL), 'u' || i || '@privaterelay.appleid.com'
            FROM generate_series(0, \(count - 1)) AS i
            """,
            """
            INSERT INTO session (id, account_id)
            SELECT id || '-' || n, id FROM account, generate_series(1, \(sessionsEach)) AS n
            """,
        ]
    }
}
