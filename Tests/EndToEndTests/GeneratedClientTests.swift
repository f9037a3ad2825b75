import AppleSimulator
import Foundation
import JOSE
import TestSupport
import Testing

@Suite("A client that is generated from the document", .timeLimit(.minutes(10)))
struct GeneratedClientTests {
    private static let client = "com.example.one"
    private static let programs = String(PythonProgram.interpreter.dropLast("/python3".count))
    static let hasGenerator = access("\(programs)/openapi-python-client", X_OK) == 0

    /// Generates the package `siwad_client` from the document that a daemon serves.
    private func generate(from socket: String, in directory: TemporaryDirectory) async throws {
        let document = directory.file("openapi.json")
        let url = "http://siwad/v1/openapi.json"
        let fetched = try await ChildProcess.run(
            [PythonProgram.interpreter, "-c", Self.fetch, socket, url, document]
        )
        try #require(fetched.isSuccess, "\(fetched.output)")
        let configuration = try directory.write("generator.json", #"{"post_hooks":[]}"#)
        let generated = try await ChildProcess.run([
            "\(Self.programs)/openapi-python-client", "generate", "--path", document, "--output-path",
            directory.file("siwad_client"), "--meta", "none", "--config", configuration, "--fail-on-warning",
        ])
        try #require(generated.isSuccess, "\(generated.output)")
    }

    private static let fetch = """
        import httpx, sys
        with httpx.Client(transport=httpx.HTTPTransport(uds=sys.argv[1])) as client:
            open(sys.argv[3], "wb").write(client.get(sys.argv[2]).raise_for_status().content)
        """

    @Test(
        "It signs a person in through a daemon and a simulated Apple, reads the session and ends it.",
        .enabled(if: GeneratedClientTests.hasGenerator, "there is no .build/python with openapi-python-client")
    )
    func backend() async throws {
        try await DaemonFixture.with { fixture in
            try await TemporaryDirectory.with { directory in
                let file = try directory.write("key.pem", try fixture.apple.key.pem())
                let arguments = ["simulate", "apple", "--key", file, "--listen", "127.0.0.1:0"]
                let apple = fixture.start(["SIWAD_APPS": DaemonFixture.apps], arguments: arguments)
                try await eventually("the simulated Apple") { !apple.output.isEmpty }
                let url = String(try #require(apple.output.first?.split(separator: " ").first))
                let key = directory.file("AuthKey_KEY1234567.p8")
                let made = try await OpenSSL.run(
                    ["genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-out", key]
                )
                try #require(made.isSuccess && chmod(key, 0o600) == 0, "\(made.output)")
                let socket = directory.file("a.sock")
                let settings = [
                    "SIWAD_APPLICATION_LISTEN": "unix:\(socket)",
                    "SIWAD_APPLE_URL": url,
                    "SIWAD_APPLE_KEYS": "AAAAAAAAAA/KEY1234567=\(key)",
                    "SIWAD_SEALING_KEYS": try SealingKeys.newLine(name: "test"),
                ]
                try await fixture.withDaemon(settings) { _, _ in
                    try await eventually("the application endpoint") { access(socket, W_OK) == 0 }
                    try await generate(from: socket, in: directory)
                    let run = try await ChildProcess.run([
                        PythonProgram.interpreter, PythonProgram.path("sign_in.py"), directory.path, "unix:\(socket)",
                        "",
                        Self.client, url,
                    ])
                    #expect(
                        run.output.split(separator: "\n") == [
                            "nonce 600", "signed in com.example.one authorized True stored",
                            "session generated True True", "repeated True", "refused 422 token-used refuse",
                            "live True",
                            "ended 204", "live False signed-out", "unknown not-found",
                        ]
                    )
                }
            }
        }
    }
}
