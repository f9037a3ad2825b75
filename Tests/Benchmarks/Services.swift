import FoundationEssentials

extension Service {
    static func siwad(_ bench: Workbench, tokens: Tokens, settings: [String: String] = [:]) -> Service {
        var environment = [
            "SIWAD_DATABASE_URL": bench.conninfo("run"),
            "SIWAD_APPS": "\(Population.team)/\(Population.app)",
            "SIWAD_KEYS_URL": "file://\(tokens.keySet)",
            "SIWAD_LISTEN": "127.0.0.1:18090",
            "SIWAD_OPERATIONS_LISTEN": "127.0.0.1:18070",
            "SIWAD_LOG_LEVEL": "warning",
        ]
        environment.merge(settings) { _, given in given }
        return Service(
            name: "siwad",
            executable: bench.siwad,
            arguments: ["serve"],
            environment: environment,
            database: "run",
            url: "http://127.0.0.1:18090/apple/notifications",
            healthURL: "http://127.0.0.1:18070/readyz"
        )
    }

    /// - Parameter pool: connections of each worker.
    static func python(_ bench: Workbench, tokens: Tokens, workers: Int, pool: Int) -> Service {
        Service(
            name: "Python",
            executable: "\(bench.directory)/venv/bin/python",
            arguments: [
                "-m", "uvicorn", "app:app", "--host", "127.0.0.1", "--port", "18091", "--workers", "\(workers)",
                "--loop", "uvloop",
                "--http", "httptools", "--interface", "asgi3", "--no-access-log", "--log-level", "warning",
                "--no-server-header", "--no-date-header", "--backlog", "4096", "--timeout-keep-alive", "65",
            ],
            environment: [
                "DATABASE_URL": bench.uri("run"), "JWKS_FILE": tokens.keySet, "POOL_SIZE": "\(pool)",
                "APPLE_AUDIENCES": Population.app, "PYTHONDONTWRITEBYTECODE": "1",
            ],
            database: "run",
            url: "http://127.0.0.1:18091/apple/notifications",
            healthURL: "http://127.0.0.1:18091/health",
            workingDirectory: "\(Peers.sources)/python"
        )
    }

    /// The service for sign-ins.
    ///
    /// - Parameter workers: each has eight connections.
    static func pythonSignIn(_ bench: Workbench, tokens: Tokens, workers: Int) -> Service {
        var service = Service.python(bench, tokens: tokens, workers: workers, pool: 8)
        service.arguments[2] = "sign_in:app"
        service.environment["TOKEN"] = SignInTokens.bearer
        service.url = "http://127.0.0.1:18091/v1/sign-in"
        return service
    }

    static func go(_ bench: Workbench, tokens: Tokens, pool: Int) -> Service {
        Service(
            name: "Go",
            executable: "\(bench.directory)/go-peer",
            arguments: [],
            environment: [
                "DATABASE_URL": bench.uri("run"), "JWKS_FILE": tokens.keySet, "POOL_SIZE": "\(pool)",
                "APPLE_AUDIENCES": Population.app, "ADDR": "127.0.0.1:18092",
            ],
            database: "run",
            url: "http://127.0.0.1:18092/apple/notifications",
            healthURL: "http://127.0.0.1:18092/health"
        )
    }
}

/// The services that siwad is compared with.
enum Peers {
    static var sources: String { Workbench.absolute("Tests/Benchmarks/peers") }

    /// Installs and builds the services, unless that is done.
    static func prepare(in directory: String, withGo: Bool = true) async throws {
        let files = FileManager.default
        guard files.fileExists(atPath: "\(sources)/go/main.go") else {
            throw BenchmarkError("\(sources) does not exist: run Benchmarks in the root directory of the package")
        }
        if !files.fileExists(atPath: "\(directory)/venv/complete") {
            Progress.note("installing the Python service's packages")
            _ = try await output(of: "python3", ["-m", "venv", "\(directory)/venv"])
            _ = try await output(
                of: "\(directory)/venv/bin/pip",
                ["install", "--quiet", "--requirement", "\(sources)/python/requirements.txt"]
            )
            try "".write(toFile: "\(directory)/venv/complete", atomically: true, encoding: .utf8)
        }
        if withGo, !files.fileExists(atPath: "\(directory)/go-peer") {
            Progress.note("building the Go service")
            _ = try await output(
                of: "go",
                ["build", "-o", "\(directory)/go-peer", "main.go"],
                environment: [
                    "GO111MODULE": "off", "GOPATH": "/usr/share/gocode", "GOCACHE": "\(directory)/go-cache",
                    "HOME": directory,
                ],
                in: "\(sources)/go"
            )
        }
    }
}
