import Glibc
import Listening
import TestSupport
import Testing

@testable import WebServer

@Suite("The socket of the application endpoint", .timeLimit(.minutes(5)))
struct ApplicationSocketTests {
    private let directory: TemporaryDirectory
    private var path: String { directory.file("application.sock") }

    init() throws {
        directory = try TemporaryDirectory()
    }

    private func socket(mode: UInt16 = 0o660) -> UnixSocket {
        UnixSocket(path: path, mode: mode, setting: "SIWAD_APPLICATION_LISTEN")
    }

    /// What is in the directory.
    private func names() throws -> [String] { try directory.names }

    private func status() throws -> stat {
        var status = stat()
        try #require(lstat(path, &status) == 0, "\(String(cString: strerror(errno)))")
        return status
    }

    /// The error of a server that can't listen on the socket.
    private func failure() async throws -> ServerError {
        let error = await #expect(throws: ServerError.self) {
            try await ApplicationFixture.with(at: .socket(socket())) { _ in }
        }
        let failure = try #require(error)
        #expect(failure.message.contains("unix:\(path)"))
        return failure
    }

    @Test(
        "It has the permissions of the setting, belongs to the user of the process, and is removed at the end.",
        arguments: [0o660, 0o600, 0o666]
    )
    func permissions(_ mode: UInt16) async throws {
        try await ApplicationFixture.with(at: .socket(socket(mode: mode))) { fixture in
            let status = try status()
            #expect(status.st_mode & S_IFMT == S_IFSOCK)
            #expect(status.st_mode & 0o7777 == mode_t(mode))
            #expect(status.st_uid == geteuid() && status.st_gid == getegid())
            #expect(try names() == ["application.sock"])
            #expect(try await fixture.one(request("POST /v1/sign-in", signInBody)).status == 200)
            #expect(fixture.service.calls.map(\.caller) == [nil])
        }
        #expect(try names() == [])
    }

    @Test("A token is asked for on a socket too, if one is configured.")
    func tokens() async throws {
        try await ApplicationFixture.with(at: .socket(socket()), callers: try ApplicationFixture.callers()) { fixture in
            let refused = try await fixture.one(request("GET /v1/openapi.json"))
            #expect(refused.status == 401)
            let bearer = "Authorization: Bearer \(ApplicationFixture.token)\r\n"
            #expect(try await fixture.one(request("GET /v1/openapi.json", fields: bearer)).status == 200)
        }
    }

    @Test("The socket of a process that has ended is replaced.")
    func stale() async throws {
        let script = "import socket, sys; s = socket.socket(socket.AF_UNIX); s.bind(sys.argv[1]); s.listen()"
        let made = try await ChildProcess.run(["/usr/bin/python3", "-c", script, path])
        try #require(made.isSuccess, "\(made.output)")
        try await ApplicationFixture.with(at: .socket(socket())) { fixture in
            let response = try await fixture.one(request("GET /v1/sessions/a"))
            #expect(response.status == 200)
            #expect(try names() == ["application.sock"])
        }
        #expect(try names() == [])
    }

    @Test("A second process does not take the socket of the first, which continues.")
    func secondProcess() async throws {
        try await ApplicationFixture.with(at: .socket(socket())) { fixture in
            let error = try await failure()
            #expect(error.code == .addressInUse)
            #expect(error.message.contains("another process answers there"))
            #expect(error.message.contains("SIWAD_APPLICATION_LISTEN"))
            #expect(try await fixture.one(request("GET /v1/sessions/a")).status == 200)
            #expect(try names() == ["application.sock"])
        }
    }

    @Test("Of many processes that start together, exactly one gets the socket.")
    func race() async throws {
        for round in 0..<20 {
            // A directory for each round: a task that has ended may hold its claim, and so the lock, a little longer.
            let folder = directory.file("\(round)")
            try #require(mkdir(folder, 0o700) == 0)
            let socket = UnixSocket(path: "\(folder)/application.sock")
            let claims = await withTaskGroup(of: SocketClaim?.self, returning: [SocketClaim].self) { group in
                for _ in 0..<8 { group.addTask { try? SocketClaim(socket) } }
                return await group.reduce(into: []) { all, claim in if let claim { all.append(claim) } }
            }
            #expect(claims.count == 1)
        }
    }

    @Test("A private directory that another user has made, or may enter, is not used.")
    func foreignStaging() async throws {
        let folder = directory.file("shared")
        try #require(mkdir(folder, 0o700) == 0)
        let staging = "\(folder)/.siwad-\(getpid())"
        try #require(mkdir(staging, 0o755) == 0)
        let error = #expect(throws: ServerError.self) {
            try SocketClaim(UnixSocket(path: "\(folder)/application.sock"))
        }
        #expect(error?.message.contains("\(staging) is not a private directory of siwad's user") == true)
        try #require(chmod(staging, 0o700) == 0)
        _ = try SocketClaim(UnixSocket(path: "\(folder)/application.sock"))
    }

    @Test("A file that is no socket is left as it is.")
    func otherFile() async throws {
        try directory.write(Array("mine".utf8), to: "application.sock")
        let error = try await failure()
        #expect(error.code == .addressUnavailable && error.message.contains("not a socket"))
        #expect(try status().st_size == 4)
    }

    @Test("A directory that is absent and a path that is too long are named with the setting.")
    func unusable() async throws {
        for (path, cause) in [
            ("\(directory.path)/none/a.sock", "No such file or directory"),
            ("\(directory.path)/\(String(repeating: "x", count: 108))", "too long"),
        ] {
            let socket = UnixSocket(path: path, setting: "SIWAD_APPLICATION_LISTEN")
            let error = await #expect(throws: ServerError.self) {
                try await ApplicationFixture.with(at: .socket(socket)) { _ in }
            }
            #expect(error?.code == .addressUnavailable)
            #expect(
                error?.message.contains(cause) == true && error?.message.contains("SIWAD_APPLICATION_LISTEN") == true
            )
        }
    }

    @Test("A socket that another process made in its place is not removed at the end.")
    func replaced() async throws {
        try await ApplicationFixture.with(at: .socket(socket())) { _ in
            #expect(unlink(path) == 0)
            try directory.write(Array("other".utf8), to: "application.sock")
        }
        #expect(try names() == ["application.sock"])
    }

    @Test("A port in use is reported with its address and its setting.")
    func portTaken() async throws {
        try await ApplicationFixture.with { fixture in
            guard case .network(let taken) = fixture.address else { return }
            let address = ListenAddress(host: "127.0.0.1", port: taken.port, setting: "SIWAD_APPLICATION_LISTEN")
            let error = await #expect(throws: ServerError.self) {
                try await ApplicationFixture.with(at: .network(address)) { _ in }
            }
            #expect(error?.code == .addressInUse)
            #expect(error?.message.contains("127.0.0.1:\(taken.port)") == true)
            #expect(error?.message.contains("SIWAD_APPLICATION_LISTEN") == true)
        }
    }
}
