import Postgres
import StoreTestSupport
import Testing

@Suite("Constraints of the tables")
struct TableCheckTests {
    @Test(
        "An invalid notification is refused with the name of the violated constraint.",
        arguments: [
            ("event_type", "event_type_is_known"), ("outcome", "notification_outcome_is_known"),
            ("source", "notification_source_is_known"),
        ]
    )
    func notification(column: String, constraint: String) async throws {
        try await Store.with { store in
            try await store.record(.sample("email-disabled", sub: "p", at: .at(0), id: "a"))
            let error = await #expect(throws: PostgresError.self) {
                try await store.texts("UPDATE siwa.notifications SET \(column) = 'odd' RETURNING jti")
            }
            #expect(error?.sqlState == .checkViolation)
            #expect(error?.constraintName == constraint)
        }
    }

    @Test(
        "An invalid change of state is refused.",
        arguments: [
            ("facet = 'odd'", "state_change_is_possible"), ("from_state = 'revoked'", "state_change_is_possible"),
            ("to_state = 'active'", "state_change_is_possible"), ("to_state = from_state", "state_change_is_possible"),
            ("facet = 'consent', to_state = 'unknown'", "state_change_is_possible"),
            ("facet = 'account', from_state = 'active', to_state = 'active'", "state_change_is_possible"),
            ("sessions_ended = -1", "account_changes_are_changes"),
            (
                "facet = 'consent', from_state = 'revoked', to_state = 'revoked', sessions_ended = 0",
                "account_changes_are_changes"
            ),
        ]
    )
    func change(assignment: String, constraint: String) async throws {
        try await Store.with { store in
            try await store.record(.sample("email-disabled", sub: "p", at: .at(0), id: "a"))
            let error = await #expect(throws: PostgresError.self) {
                try await store.texts("UPDATE siwa.account_changes SET \(assignment) RETURNING jti")
            }
            #expect(error?.sqlState == .checkViolation)
            #expect(error?.constraintName == constraint)
        }
    }
}
