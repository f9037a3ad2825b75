import Glibc
import TestSupport
import Testing

/// The Python programs in `Receivers`. They need packages, which deploy/test installs in `.build/python`.
enum PythonProgram {
    private static let root = #filePath.split(separator: "/").dropLast(4).map { "/\($0)" }.joined()
    static let interpreter = root + "/.build/python/bin/python3"
    static let schema = root + "/Schema/Events/v1.json"

    static var isAvailable: Bool { access(interpreter, X_OK) == 0 }
    static let missing: Comment = "deploy/test could not install the packages of Receivers/requirements.txt"

    /// The receiver that the documents show.
    static let exampleReceiver = root + "/deploy/examples/webhook/python/receiver.py"

    static func path(_ program: String) -> String { "\(root)/Tests/EndToEndTests/Receivers/\(program)" }

    /// What is wrong with events, by the JSON Schema that siwad publishes.
    static func problems(_ events: [String]) async throws -> String {
        try await TemporaryDirectory.with { directory in
            let file = try directory.write("events", events.map { $0 + "\n" }.joined())
            let run = try await ChildProcess.run([interpreter, path("validate.py"), schema, file])
            return run.isSuccess ? run.output : "failed: \(run.output)"
        }
    }

    /// The deliveries, as lines for `verify.py`, whose signature the reference library judges differently.
    static func differences(in deliveries: [String], from secret: String) async throws -> String {
        try await TemporaryDirectory.with { directory in
            let file = try directory.write("deliveries", deliveries.map { $0 + "\n" }.joined())
            let run = try await ChildProcess.run([interpreter, path("verify.py"), secret, file])
            return run.isSuccess ? run.output : "failed: \(run.output)"
        }
    }
}
