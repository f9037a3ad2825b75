import AppleTokens
import Glibc
import JOSE
import SignIn
import Telemetry
import TestSupport
import Testing

@testable import WebServer

@Suite("The document about the application endpoint", .timeLimit(.minutes(5)))
struct ApplicationDocumentTests {
    private static let root = #filePath.split(separator: "/").dropLast(3).map { "/\($0)" }.joined()
    private static let programs = root + "/.build/python/bin"
    static var hasSchemathesis: Bool { access("\(programs)/schemathesis", X_OK) == 0 }

    private let document: Document

    init() throws {
        let file = "\(Self.root)/Sources/WebServer/Application/openapi.json"
        document = try Document(file: file)
    }

    @Test("It is served as it is in the source.")
    func served() async throws {
        try await ApplicationFixture.with { fixture in
            let response = try await fixture.one(request("GET /v1/openapi.json"))
            #expect(response.body == document.text)
        }
    }

    @Test("It has an example of each problem with its title, its status and its action, at the response of its status.")
    func problems() throws {
        let responses = try #require(document["components", "responses"]?.members)
        let examples = responses.flatMap { response in
            document["components", "responses", response.name, "content", "application/problem+json", "examples"]?
                .members ?? []
        }
        // A method that isn't in the document can't have a response in it.
        let unlisted: Set<Problem.Reason> = [.methodNotAllowed]
        for reason in Problem.Reason.allCases where !unlisted.contains(reason) {
            let bodies = examples.filter { $0.name == reason.rawValue }.compactMap { $0.value["value"] }
            #expect(!bodies.isEmpty, "\(reason)")
            for body in bodies {
                let detail = try #require(body["detail"]?.string)
                #expect(body.compactText == Problem(reason, detail).json)
            }
        }
        #expect(Set(examples.map(\.name)).isSubset(of: Problem.Reason.allCases.map(\.rawValue)))
    }

    @Test("Each operation lists the statuses that the endpoint itself can answer.")
    func statuses() throws {
        for (path, item) in try #require(document["paths"]?.members).map({ ($0.name, $0.value) }) {
            for (method, operation) in (item.members ?? []).map({ ($0.name, $0.value) }) where method != "parameters" {
                let statuses = Set((operation["responses"]?.members ?? []).map(\.name))
                let expected: Set =
                    method == "post"
                    ? ["401", "403", "408", "413", "415", "503"] : ["401", "403", "408", "413", "503"]
                #expect(statuses.isSuperset(of: expected), "\(method) \(path)")
            }
        }
    }

    @Test("Each status of an operation has problems of that status, and signing in has every one that is counted.")
    func reasons() throws {
        for item in try #require(document["paths"]?.members) {
            for operation in item.value.members ?? [] where operation.name != "parameters" {
                var reasons: Set<String> = []
                for response in try #require(operation.value["responses"]?.members) where response.name >= "4" {
                    let place = "\(operation.name) \(item.name) \(response.name)"
                    let reference = try #require(response.value["$ref"]?.string, "\(place)")
                    let name = try #require(reference.split(separator: "/").last.map(String.init))
                    let problem = document["components", "responses", name, "content", "application/problem+json"]
                    let examples = try #require(problem?["examples"]?.members, "\(place)")
                    #expect(!examples.isEmpty, "\(place)")
                    for example in examples {
                        let status = example.value["value"]?["status"]?.integer
                        #expect(status.map { String($0) } == response.name, "\(place)")
                        reasons.insert(example.name)
                    }
                }
                guard item.name == "/v1/sign-in" else { continue }
                #expect(reasons == Set(SignInMetrics.outcomes).subtracting(["signed-in", "repeated"]))
            }
        }
    }

    @Test("The answer has the members of the document, and no others.")
    func answer() throws {
        let answer = try JSONValue(parsing: Array(StubService.answer.json.utf8))
        let objects = [
            ("SignIn", answer), ("Account", answer["account"]), ("Email", answer["email"]), ("Name", answer["name"]),
            ("Session", answer["session"]),
            (
                "SessionState",
                try JSONValue(parsing: Array(SessionAnswer(isLive: true, endedAt: nil, endReason: nil).json.utf8))
            ),
        ]
        for (name, value) in objects {
            let schema = try #require(document["components", "schemas", name])
            let members = Set((value?.members ?? []).map(\.name))
            #expect(members == Set((schema["properties"]?.members ?? []).map(\.name)), "\(name)")
            #expect(members == Set((schema["required"]?.array ?? []).compactMap(\.string)), "\(name)")
        }
        let states =
            document["components", "schemas", "SignIn", "properties", "refresh_token", "description"]?.string ?? ""
        for state in SignInAnswer.RefreshToken.allCases { #expect(states.contains("`\(state.rawValue)`")) }
        let actions = document["components", "schemas", "Problem", "properties", "action", "enum"]?.array?.compactMap(
            \.string
        )
        #expect(Set(actions ?? []) == Set(Problem.Action.allCases.map(\.rawValue)))
    }

    @Test("The examples of requests are accepted.")
    func examples() throws {
        let examples = document[
            "paths",
            "/v1/sign-in",
            "post",
            "requestBody",
            "content",
            "application/json",
            "examples"
        ]?.members
        for example in try #require(examples) {
            let body = try #require(example.value["value"]).compactText
            #expect(throws: Never.self) { try SignInRequest(parsing: Array(body.utf8), idempotencyKey: nil) }
        }
    }

    @Test(
        "schemathesis finds no request to which the endpoint answers otherwise than the document says.",
        .enabled(if: ApplicationDocumentTests.hasSchemathesis, "there is no .build/python with schemathesis")
    )
    func schemathesis() async throws {
        // The server shares its threads with other tests, so an answer may be late. It must come all the same, and the deadline is
        // later than schemathesis waits, so that it does not replace an answer that is lost.
        var limits = ApplicationServer.Limits()
        limits.deadline = limits.idleDeadline
        try await ApplicationFixture.with(limits: limits, callers: try ApplicationFixture.callers()) { fixture in
            let arguments = [
                "\(Self.programs)/schemathesis", "run", "\(Self.root)/Sources/WebServer/Application/openapi.json",
                "--url", "http://\(fixture.address)", "--header", "Authorization: Bearer \(ApplicationFixture.token)",
                "--request-timeout", "60", "--phases", "examples,coverage,fuzzing", "--max-examples", "40",
                "--seed", "1", "--generation-database", "none", "--no-color",
                // Whether a person is signed in depends on Apple, not on the form of the request.
                "--exclude-checks", "positive_data_acceptance",
            ]
            // It writes a cache into its working directory.
            let directory = try TemporaryDirectory()
            let inside = ["/bin/sh", "-c", "cd \"$0\" && exec \"$@\"", directory.path]
            let run = try await ChildProcess.run(inside + arguments)
            #expect(run.isSuccess, "\(run.output)")
            let operations = Set(fixture.service.calls.map(\.operation))
            #expect(operations == ["nonce", "sign-in", "session", "end"])
        }
    }
}

/// A JSON document of the source.
private struct Document {
    let text: String
    private let value: JSONValue

    init(file: String) throws {
        let descriptor = open(file, O_RDONLY)
        try #require(descriptor >= 0, "\(file)")
        defer { close(descriptor) }
        var bytes = [UInt8](repeating: 0, count: 1 << 20)
        let count = read(descriptor, &bytes, bytes.count)
        text = String(decoding: bytes.prefix(count), as: UTF8.self)
        value = try JSONValue(parsing: Array(bytes.prefix(count)))
    }

    subscript(_ names: String...) -> JSONValue? {
        names.reduce(value) { $0?[$1] }
    }
}
