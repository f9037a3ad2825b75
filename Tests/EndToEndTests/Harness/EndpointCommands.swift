import Testing

/// `siwad endpoints`, as an operator runs it.
extension DaemonFixture {
    static let receiverQuery = "token=hidden-in-the-query"
    static let receiverURL = "https://shop.example.com/hooks/siwa?\(receiverQuery)"

    func attemptEndpoints(_ arguments: [String], _ settings: [String: String] = [:]) async throws -> CommandRun {
        try await siwad(["endpoints"] + arguments, environment: environment(Sealing.settings.merging(settings) { $1 }))
    }

    /// As ``attemptEndpoints(_:_:)``, for a command that has to succeed. It gets the note that it needs.
    @discardableResult
    func endpoints(_ line: String) async throws -> CommandRun {
        let audited = ["add", "edit", "apply", "rotate", "pause", "resume", "seek", "remove"]
        let words = line.split(separator: " ").map(String.init)
        let note = audited.contains(words[0]) && !words.contains("--dry-run") ? ["--note", "why"] : []
        let run = try await attemptEndpoints(words + note)
        #expect(run.status == 0, "\(line): \(run.errors)")
        return run
    }

    /// The position and the status of each delivery.
    func deliveryPositions() async throws -> [String] {
        try await texts("SELECT position || ' ' || status FROM siwa.deliveries ORDER BY position")
    }

    /// The action, the target and the note of each entry of the audit, oldest first.
    func audit() async throws -> [String] {
        try await texts("SELECT action || ': ' || target || ': ' || note FROM siwa.operator_actions ORDER BY action_id")
    }
}

/// The key that seals secrets in tests.
enum Sealing {
    static let key = String(repeating: "A", count: 43) + "="
    static let settings = ["SIWAD_SEALING_KEYS": "test:\(key)"]
}

enum Changes {
    /// Publishes sign-ins, one each of new people.
    static func publish(_ count: Int, in fixture: DaemonFixture) async throws {
        try await fixture.run(
            """
            SELECT siwa.record_sign_in('com.example.one', 'p' || gen_random_uuid()) FROM generate_series(1, \(count));
            """
        )
        try await fixture.run("SELECT siwa.publish_changes()")
    }
}
