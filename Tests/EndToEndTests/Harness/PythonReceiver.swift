import JOSE

/// A running `receiver.py`, which verifies webhooks with the reference library. It ends with its fixture.
struct PythonReceiver: Sendable {
    /// A request that it got.
    struct Message: Sendable {
        let id: String
        let status: Int
        /// The secrets, by their lines in the file, that signed it.
        let accepted: [Int]
        /// The versions of the signatures, in their order.
        let signatures: [String]
        /// `Content-Type`.
        let type: String
        let body: String
    }

    let url: String
    private let process: DaemonProcess

    /// - Parameters:
    ///   - secrets: a file with a secret in each line.
    ///   - refusals: how many requests get 500 first.
    ///   - isBrief: ``lines`` instead of ``messages``.
    init(_ fixture: DaemonFixture, secrets: String, refusals: Int = 0, isBrief: Bool = false) async throws {
        let program =
            [PythonProgram.interpreter, PythonProgram.path("receiver.py"), secrets, "\(refusals)"]
            + (isBrief ? ["--brief"] : [])
        let process = fixture.start(arguments: [], under: program)
        try await eventually("the receiver") { !process.output.isEmpty || process.status != nil }
        guard let port = process.output.first.flatMap({ try? JSONValue(parsing: Array($0.utf8)) })?["port"]?.integer
        else {
            throw TooLate("the receiver: \(process.log)")
        }
        url = "http://127.0.0.1:\(port)/webhooks"
        self.process = process
    }

    /// How many lines there are.
    var count: Int { process.output.count - 1 }

    /// Id, position, sub and notification of each accepted message.
    var lines: [[Substring]] { process.output.dropFirst().map { $0.split(separator: "\t") } }

    var messages: [Message] {
        get throws {
            try process.output.dropFirst().map { line in
                let message = try JSONValue(parsing: Array(line.utf8))
                return Message(
                    id: message["id"]?.string ?? "",
                    status: Int(message["status"]?.integer ?? 0),
                    accepted: (message["accepted"]?.array ?? []).compactMap { $0.integer.map { Int($0) } },
                    signatures: (message["signatures"]?.array ?? []).compactMap(\.string),
                    type: message["type"]?.string ?? "",
                    body: message["body"]?.string ?? ""
                )
            }
        }
    }
}
