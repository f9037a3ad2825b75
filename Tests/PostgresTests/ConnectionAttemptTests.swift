import Testing

@testable import Postgres

@Suite("An attempt to connect")
struct ConnectionAttemptTests {
    @Test(
        "An attempt that ends in time returns its result, whether it ends before or after the wait starts.",
        arguments: [true, false]
    )
    func inTime(_ isEarly: Bool) async throws {
        let attempt = try ConnectionAttempt()
        if isEarly {
            #expect(attempt.ended(.success(())))
            try await attempt.result().get()
        } else {
            let ending = Task { attempt.ended(.success(())) }
            try await attempt.result().get()
            #expect(await ending.value)
        }
        attempt.timePassed()
        attempt.cancelled()
    }

    @Test("An attempt that never ends does not block its caller after the deadline or a cancellation.")
    func hanging() async throws {
        let late = try ConnectionAttempt()
        late.timePassed()
        guard case .failure(let error) = await late.result() else {
            Issue.record("the deadline had passed")
            return
        }
        #expect(error.code == .connectionFailed)
        #expect(error.message.contains("name server"))
        #expect(!late.ended(.success(())), "the abandoned attempt closes its connection")

        let cancelled = try ConnectionAttempt()
        cancelled.cancelled()
        guard case .failure(let error) = await cancelled.result() else {
            Issue.record("it was cancelled")
            return
        }
        #expect(error.code == .cancelled)
        #expect(!cancelled.ended(.success(())))
    }

    @Test("Hanging attempts never keep more threads than the limit; when they end, new ones can start.")
    func many() async throws {
        let count = ConnectionAttempt.Count(limit: 2)
        let hanging = [try ConnectionAttempt(counting: count), try ConnectionAttempt(counting: count)]
        hanging[0].timePassed()
        _ = try ConnectionAttempt(counting: count)
        hanging[1].cancelled()
        let error = #expect(throws: PostgresError.self) { try ConnectionAttempt(counting: count) }
        #expect(error?.code == .connectionFailed)
        #expect(!hanging[0].ended(.success(())))
        let late = try ConnectionAttempt(counting: count)
        // No effect, because the attempt has ended.
        #expect(late.ended(.success(())))
        late.timePassed()
        _ = try ConnectionAttempt(counting: count)
    }
}
