import AccountStore
import Basics
import Postgres
import StoreTestSupport
import TestSupport
import Testing

@Suite("The stored health of endpoints")
struct EndpointHealthTests {
    private func ago(_ hours: Int64) -> WallTime { .now() - .seconds(hours * 3_600) }

    /// Adds an endpoint that was enabled ten days ago.
    private func addEndpoint(_ store: Store) async throws -> Int32 {
        let id = try await store.connection.transaction { session throws(PostgresError) in
            let configuration = EndpointConfiguration(name: "shop", url: "https://shop.example.com/")
            return try Endpoints.insert(configuration, in: session).id
        }
        try await store.run("UPDATE siwa.endpoints SET status_at = now() - interval '10 d'")
        return id
    }

    /// Stores what a daemon knows.
    private func keep(_ store: Store, _ change: @Sendable (inout EndpointState) -> Void) async throws {
        var state = EndpointState()
        change(&state)
        let known = state
        try await store.connection.withSession { session throws(PostgresError) in
            let endpoint = try Endpoints.all(in: session)[0].endpoint
            try DeliveryQueue.store(known, of: endpoint, in: session)
        }
    }

    private func stored(_ store: Store) async throws -> EndpointState {
        try await store.connection.withSession { session throws(PostgresError) in
            try Endpoints.all(in: session)[0].state
        }
    }

    private func disable(_ store: Store) async throws -> Bool {
        try await store.connection.withSession { session throws(PostgresError) in
            try DeliveryQueue.disable(Endpoints.all(in: session)[0].endpoint, .failing, in: session)
        }
    }

    @Test("After a success of a daemon whose clock is ahead, failures count from the next one on.")
    func clockAhead() async throws {
        try await Store.with { store in
            _ = try await addEndpoint(store)
            try await keep(store) { $0.lastSuccessAt = .now() + .seconds(86_400) }
            let failure = WallTime.now() + .seconds(1)
            try await keep(store) { ($0.failingSince, $0.lastFailedAt) = (failure, failure) }
            #expect(try await stored(store).failingSince == failure)
            // As a version before stored it.
            try await store.run(
                "UPDATE siwa.endpoint_states SET last_success_at = now() + interval '1 d', failing_since = NULL"
            )
            try await keep(store) { ($0.failingSince, $0.lastFailedAt) = (failure, failure) }
            let later = WallTime.now() + .seconds(1)
            try await keep(store) { ($0.failingSince, $0.lastFailedAt) = (later, later) }
            #expect(try await stored(store).failingSince == later)
        }
    }

    @Test("A daemon that was idle during another one's success stores its later failure, and not the one before.")
    func successElsewhere() async throws {
        try await Store.with { store in
            _ = try await addEndpoint(store)
            let (first, success, later) = (ago(6 * 24), ago(48), ago(1))
            try await keep(store) { ($0.failingSince, $0.lastFailedAt) = (first, first) }
            #expect(try await stored(store).failingSince == first)
            try await keep(store) { $0.lastSuccessAt = success }
            #expect(try await stored(store).failingSince == nil)

            try await keep(store) { ($0.failingSince, $0.lastFailedAt) = (first, later) }
            let state = try await stored(store)
            #expect(state.failingSince == later && state.lastSuccessAt == success)
            #expect(try await !disable(store))

            // It stores its state again without a failure after the success.
            try await keep(store) { $0.lastSuccessAt = later }
            try await keep(store) { ($0.failingSince, $0.lastFailedAt) = (first, first) }
            #expect(try await stored(store).failingSince == nil)
        }
    }

    @Test("Of the failures of several daemons, the first one counts, also if one of them knows of none.")
    func firstFailure() async throws {
        try await Store.with { store in
            _ = try await addEndpoint(store)
            let (early, late) = (ago(5), ago(3))
            for time in [late, early, late] {
                try await keep(store) { ($0.failingSince, $0.lastFailedAt) = (time, late) }
            }
            #expect(try await stored(store).failingSince == early)
            // Its receiver asked for a pause.
            let until = ago(-1)
            try await keep(store) { ($0.openUntil, $0.probeDelay, $0.lastReason) = (until, .seconds(5), "throttled") }
            let state = try await stored(store)
            #expect(state.failingSince == early && state.openUntil == until && state.lastReason == "throttled")
        }
    }

    @Test("A daemon that knows of no pause does not end the one that a receiver asked of another daemon.")
    func pauseOfAnother() async throws {
        try await Store.with { store in
            _ = try await addEndpoint(store)
            let (until, success) = (WallTime.now() + .seconds(600), WallTime.now())
            func pause(_ reason: String, until: WallTime) async throws -> EndpointState {
                try await store.run("UPDATE siwa.endpoint_states SET open_until = NULL, probe_delay = NULL")
                try await keep(store) { ($0.openUntil, $0.probeDelay, $0.lastReason) = (until, .seconds(5), reason) }
                try await keep(store) { $0.lastSuccessAt = success }
                return try await stored(store)
            }
            let failure = ago(1)
            try await keep(store) { ($0.openUntil, $0.probeDelay, $0.lastReason) = (until, .seconds(5), "throttled") }
            // A request of another daemon was under way.
            try await keep(store) { ($0.failingSince, $0.lastFailedAt, $0.lastReason) = (failure, failure, "failed") }
            try await keep(store) {
                ($0.failingSince, $0.lastFailedAt, $0.lastReason) = (failure, failure, "failed")
                ($0.openUntil, $0.probeDelay) = (success + .seconds(10), .seconds(10))
            }
            let failing = try await stored(store)
            #expect(failing.openUntil == until && failing.lastReason == "throttled" && failing.failingSince == failure)
            #expect(failing.probeDelay == .seconds(5))
            let paused = try await pause("throttled", until: until)
            #expect(paused.openUntil == until && paused.probeDelay == .seconds(5) && paused.lastSuccessAt == success)
            #expect(try await pause("throttled", until: ago(1)).openUntil == nil)
            // Further ahead than any pause: the clock that set it was wrong.
            #expect(try await pause("throttled", until: ago(-2)).openUntil == nil)
            #expect(try await pause("timed-out", until: until).openUntil == nil)
        }
    }

    @Test("Failures from before an operator resumed the endpoint don't count.")
    func resumed() async throws {
        try await Store.with { store in
            let id = try await addEndpoint(store)
            let (before, after) = (ago(5), ago(-1))
            try await keep(store) { ($0.failingSince, $0.lastFailedAt) = (before, before) }
            try await store.connection.transaction { session throws(PostgresError) in
                try Endpoints.pause(id, in: session)
                try Endpoints.resume(id, in: session)
            }
            try await keep(store) { ($0.failingSince, $0.lastFailedAt) = (before, before) }
            #expect(try await stored(store).failingSince == nil)
            try await keep(store) { ($0.failingSince, $0.lastFailedAt) = (before, after) }
            #expect(try await stored(store).failingSince == after)
        }
    }

    @Test(
        "An endpoint is disabled as failing only after five days without a success of any daemon.",
        arguments: [
            ("121 h", nil, true), ("121 h", "130 h", true), ("119 h", nil, false), ("119 h", "130 h", false),
            // As a daemon of an earlier version stores it.
            ("121 h", "119 h", false), ("121 h", "1 s", false),
        ] as [(String, String?, Bool)]
    )
    func disabling(failing: String, success: String?, isDisabled: Bool) async throws {
        try await Store.with { store in
            _ = try await addEndpoint(store)
            let successAt = success.map { "now() - interval '\($0)'" } ?? "NULL"
            try await store.run(
                """
                UPDATE siwa.endpoint_states
                SET failing_since = now() - interval '\(failing)', last_success_at = \(successAt)
                """
            )
            #expect(try await disable(store) == isDisabled)
            let status = try await store.texts("SELECT concat_ws(' ', status, status_reason) FROM siwa.endpoints")
            #expect(status == [isDisabled ? "disabled failing" : "enabled"])
        }
    }

    @Test("The words of the last failure are kept with its reason, at most 500 characters, and a success keeps them.")
    func words() async throws {
        try await Store.with { store in
            _ = try await addEndpoint(store)
            try await keep(store) {
                ($0.lastReason, $0.lastDetail) = ("unreachable", String(repeating: "ä", count: 600))
            }
            #expect(try await stored(store).lastDetail == String(repeating: "ä", count: 500))
            try await keep(store) { $0.lastReason = "failed" }
            #expect(try await stored(store).lastDetail == nil)
            try await keep(store) { ($0.lastReason, $0.lastDetail) = ("tls", "the certificate is for another name") }
            let success = ago(0)
            try await keep(store) { $0.lastSuccessAt = success }
            let state = try await stored(store)
            #expect(state.lastReason == "tls" && state.lastDetail == "the certificate is for another name")
        }
    }
}
