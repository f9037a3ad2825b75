import AccountStore
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

    /// Adds an endpoint with a state, a secret, and a delivery.
    private static let endpoint = """
        INSERT INTO siwa.endpoints (name, url) VALUES ('shop', 'https://a.example');
        INSERT INTO siwa.endpoint_states (endpoint_id) SELECT endpoint_id FROM siwa.endpoints;
        INSERT INTO siwa.endpoint_secrets (endpoint_id, purpose, generation, sealed, key_id, fingerprint)
        SELECT endpoint_id, 'hmac', 1, '', 'key', '0123abcd' FROM siwa.endpoints;
        INSERT INTO siwa.deliveries (endpoint_id, position, account_id) SELECT endpoint_id, 1, 1 FROM siwa.endpoints;
        INSERT INTO siwa.delivery_attempts (endpoint_id, position, attempt, attempted_at, duration, reason, detail)
        SELECT endpoint_id, 1, 1, now(), '1 s', 'failed', 'words' FROM siwa.endpoints
        """

    @Test(
        "An invalid row about endpoints is refused with the name of the violated constraint.",
        arguments: [
            ("endpoints", "name = 'Shop'", "endpoints_name_is_a_label"),
            ("endpoints", "name = '-shop'", "endpoints_name_is_a_label"),
            ("endpoints", "kind = 'email'", "endpoints_kind_is_known"),
            ("endpoints", "url = NULL", "endpoints_polled_have_no_url"),
            ("endpoints", "url = repeat('a', 2049)", "endpoints_url_is_short"),
            ("endpoints", "audience = 'a'", "endpoints_webhooks_have_no_audience"),
            ("endpoints", "types = '{}'", "endpoints_types_are_known"),
            ("endpoints", "types = '{siwa.other}'", "endpoints_types_are_known"),
            ("endpoints", "apps = '{}'", "endpoints_apps_are_named"),
            ("endpoints", "apps = '{NULL}'", "endpoints_apps_are_named"),
            ("endpoints", "ordering = 'odd'", "endpoints_ordering_is_known"),
            ("endpoints", "concurrency = 65", "endpoints_concurrency_is_bounded"),
            ("endpoints", "timeout = '61 s'", "endpoints_timeout_is_bounded"),
            ("endpoints", "rate = 0", "endpoints_rate_is_positive"),
            ("endpoints", "retries = '{0 s}'", "endpoints_retries_are_delays"),
            ("endpoints", "retries = '{NULL}'", "endpoints_retries_are_delays"),
            ("endpoints", "disable_after = '-1 s'", "endpoints_disable_after_is_a_time"),
            ("endpoints", "signature = 'rsa'", "endpoints_signature_is_known"),
            ("endpoints", "include = '{names}'", "endpoints_include_is_known"),
            ("endpoints", "subject = 'simple'", "endpoints_subject_is_known"),
            ("endpoints", "revoked_as = 'account-disabled'", "endpoints_revoked_as_is_known"),
            ("endpoints", "version = 2", "endpoints_version_is_known"),
            ("endpoints", "status = 'gone', status_reason = 'gone'", "endpoints_status_is_known"),
            ("endpoints", "status = 'paused'", "endpoints_status_has_a_reason"),
            ("endpoints", "status_reason = 'gone'", "endpoints_status_has_a_reason"),
            ("endpoints", "status = 'paused', status_reason = 'odd'", "endpoints_status_reason_is_known"),
            ("endpoint_states", "open_until = now()", "endpoint_states_open_with_a_delay"),
            ("endpoint_states", "last_detail = repeat('ä', 501)", "endpoint_states_last_detail_is_short"),
            ("endpoint_secrets", "purpose = 'odd'", "endpoint_secrets_purpose_is_known"),
            ("endpoint_secrets", "generation = 0", "endpoint_secrets_generation_is_counted_from_one"),
            ("endpoint_secrets", "key_id = NULL", "endpoint_secrets_poll_tokens_are_digests"),
            ("endpoint_secrets", "fingerprint = 'ABC'", "endpoint_secrets_fingerprint_is_short"),
            ("deliveries", "status = 'odd'", "deliveries_status_is_known"),
            ("deliveries", "next_attempt_at = NULL", "deliveries_waiting_have_a_time"),
            ("deliveries", "status = 'delivered', next_attempt_at = NULL", "deliveries_resolved_at_a_time"),
            (
                "deliveries", "status = 'discarded', next_attempt_at = NULL, resolved_at = now()",
                "deliveries_discarded_by_someone"
            ),
            ("deliveries", "claim = gen_random_uuid()", "deliveries_claimed_for_a_time"),
            (
                "deliveries",
                """
                status = 'delivered', next_attempt_at = NULL, resolved_at = now(), claim = gen_random_uuid(),
                claimed_until = now()
                """,
                "deliveries_only_waiting_are_claimed"
            ),
            ("deliveries", "reason = 'failed'", "deliveries_failed_for_a_reason"),
            ("deliveries", "status = 'retry'", "deliveries_retried_after_a_failure"),
            ("deliveries", "reason = 'odd', first_failed_at = now()", "deliveries_reason_is_known"),
            ("deliveries", "attempts = -1", "deliveries_attempts_are_counted"),
            ("delivery_attempts", "duration = '-1 s'", "delivery_attempts_duration_is_positive"),
        ]
    )
    func endpoint(table: String, assignment: String, constraint: String) async throws {
        try await Store.with { store in
            try await store.run(Self.endpoint)
            let error = await #expect(throws: PostgresError.self) {
                try await store.run("UPDATE siwa.\(table) SET \(assignment)")
            }
            #expect(error?.sqlState == .checkViolation)
            #expect(error?.constraintName == constraint)
        }
    }

    @Test("A second endpoint of a name, and rows about an endpoint that is missing, are refused.")
    func endpointKeys() async throws {
        try await Store.with { store in
            try await store.run(Self.endpoint)
            for (statement, constraint) in [
                ("INSERT INTO siwa.endpoints (name, url) VALUES ('shop', 'u')", "endpoints_name_is_unique"),
                ("INSERT INTO siwa.endpoint_states VALUES (0)", "endpoint_states_endpoint_exists"),
                (
                    "INSERT INTO siwa.endpoint_secrets VALUES (0, 'hmac', 1, '', 'key', '0123abcd')",
                    "endpoint_secrets_endpoint_exists"
                ),
                ("INSERT INTO siwa.deliveries VALUES (0, 1, 1)", "deliveries_endpoint_exists"),
                (
                    """
                    INSERT INTO siwa.delivery_attempts
                        (endpoint_id, position, attempt, attempted_at, duration, reason, detail)
                    VALUES (0, 1, 1, now(), '1 s', 'failed', 'words')
                    """,
                    "delivery_attempts_delivery_exists"
                ),
            ] {
                let error = await #expect(throws: PostgresError.self) { try await store.run(statement) }
                #expect(error?.constraintName == constraint)
            }
            try await store.run("DELETE FROM siwa.endpoints")
            #expect(try await store.texts("SELECT 'left' FROM siwa.delivery_attempts") == [])
        }
    }

    private static let signIns = [
        ("sign_ins", "presented_digest = ''", "digest_is_a_sha256"),
        ("sign_ins", "nonce_digest = repeat('x', 31)::bytea", "digest_is_a_sha256"),
        ("sign_ins", "code_digest = repeat('x', 33)::bytea", "digest_is_a_sha256"),
        ("sign_ins", "attempt = ''", "digest_is_a_sha256"), ("sign_ins", "flow = 'odd'", "sign_in_flow_is_known"),
        ("sign_ins", "refresh = 'odd'", "refresh_outcome_is_known"),
        ("sign_ins", "real_user_status = 'real'", "real_user_status_is_known"),
        ("sign_ins", "settled_at = NULL", "sign_ins_are_settled_completely"),
        ("sign_ins", "account_id = NULL", "sign_ins_are_settled_completely"),
        ("sign_ins", "signed_in_at = NULL", "sign_ins_are_settled_completely"),
        ("sign_ins", "refresh = NULL", "sign_ins_are_settled_completely"),
        ("sign_ins", "refresh = 'pending'", "sign_ins_pending_have_a_code_that_is_due"),
        (
            "sign_ins", "refresh = 'pending', code_sealed = 'code'",
            "sign_ins_pending_have_a_code_that_is_due"
        ),
        (
            "sign_ins", "code_sealed = 'code', code_due_at = now()",
            "sign_ins_pending_have_a_code_that_is_due"
        ),
        ("sign_ins", "refresh = 'refused'", "sign_ins_refused_with_an_error"),
        ("sign_ins", "refresh_error = 'invalid_grant'", "sign_ins_refused_with_an_error"),
        ("sign_ins", "code_attempts = -1", "sign_ins_code_attempts_are_counted"),
        ("apple_tokens", "refusals = -1", "apple_tokens_refusals_are_counted"),
        ("apple_tokens", "state = 'odd'", "apple_tokens_state_is_known"),
        ("kept_names", "given = NULL", "kept_names_have_a_part"),
        ("kept_names", "given = ''", "kept_names_have_a_part"),
    ]

    // In one database, which a statement that is refused leaves as it was.
    @Test("An invalid row about sign-ins is refused with the name of the violated constraint.")
    func signIn() async throws {
        try await Store.with { store in
            try await store.signInWhole("a", name: .init(given: "Maria", family: nil), refresh: .stored)
            for (table, assignment, constraint) in Self.signIns {
                let error = await #expect(throws: PostgresError.self) {
                    try await store.run("UPDATE siwa.\(table) SET \(assignment)")
                }
                #expect(error?.sqlState == .checkViolation, "\(assignment)")
                #expect(error?.constraintName == constraint, "\(assignment)")
            }
        }
    }

    @Test("A token and a nonce have one sign-in each, and tokens and names belong to a known consent.")
    func signInKeys() async throws {
        try await Store.with { store in
            try await store.signInWhole("a", name: .init(given: "Maria", family: nil), refresh: .stored)
            let copied = """
                client_id, app_id, flow, caller) SELECT presented, nonce, client_id, app_id, flow, caller
                FROM siwa.sign_ins, (VALUES
                """
            func insert(_ presented: String, _ nonce: String) -> String {
                "INSERT INTO siwa.sign_ins (presented_digest, nonce_digest, \(copied) (\(presented), \(nonce))"
                    + ") AS v (presented, nonce)"
            }
            let other = "sha256('other')"
            for (statement, constraint) in [
                (
                    insert("(SELECT presented_digest::bytea FROM siwa.sign_ins)", other),
                    "sign_ins_token_is_used_once"
                ),
                (insert(other, "(SELECT nonce_digest::bytea FROM siwa.sign_ins)"), "sign_ins_nonce_is_used_once"),
                ("UPDATE siwa.apple_tokens SET app_id = 'com.example.two'", "apple_tokens_consent_exists"),
                ("UPDATE siwa.apple_tokens SET account_id = 0", "apple_tokens_consent_exists"),
                ("UPDATE siwa.kept_names SET account_id = 0", "kept_names_consent_exists"),
            ] {
                let error = await #expect(throws: PostgresError.self) { try await store.run(statement) }
                #expect(error?.constraintName == constraint)
            }
        }
    }
}
