import Testing

@testable import Postgres

@Suite("An attempt to connect")
struct ConnectionAttemptTests {
    @Test("An attempt that ends in time gives its result, before it is awaited or after.", arguments: [true, false])
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

    @Test("An attempt that never ends keeps no caller beyond its deadline or its cancellation.")
    func hanging() async throws {
        let late = try ConnectionAttempt()
        late.timePassed()
        guard case .failure(let error) = await late.result() else {
            Issue.record("its time was up")
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

    @Test("Attempts that hang never keep more threads than the limit; when they end, others begin.")
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
        // Too late: its end was there before.
        #expect(late.ended(.success(())))
        late.timePassed()
        _ = try ConnectionAttempt(counting: count)
    }
}
