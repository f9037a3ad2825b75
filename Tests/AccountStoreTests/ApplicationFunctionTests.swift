import AccountStore
import AppleTokens
import Basics
import Postgres
import StoreTestSupport
import TestSupport
import Testing

@Suite("SQL functions for applications")
struct ApplicationFunctionTests {
    @Test("A sign-in with any client id of a group authorizes the group, and is idempotent.")
    func signIn() async throws {
        try await Store.with { store in
            try await store.signIn("p", at: .at(0), client: "com.example.web")
            try await store.signIn("p", at: .at(0))
            #expect(try await store.state("p")?.state == "authorized")
            #expect(try await store.history("p").count == 1)
        }
    }

    @Test("A sign-in for an unknown client id is refused; the hint names the setting and how to reload it.")
    func unknownClient() async throws {
        try await Store.with { store in
            let error = await #expect(throws: PostgresError.self) {
                try await store.signIn("p", at: .at(0), client: "com.example.nobody")
            }
            #expect(error?.sqlState?.rawValue == "SW001")
            #expect(error?.hint?.contains("SIWAD_APPS") == true)
            #expect(error?.hint?.contains("reload siwad (SIGHUP)") == true)
        }
    }

    @Test("A sign-in for a deleted account is refused, and a session for it has ended when it is opened.")
    func deletedAccount() async throws {
        try await Store.with { store in
            try await store.signIn("p", at: .at(0))
            try await store.record(.sample("account-deleted", sub: "p", at: .at(0), id: "a"))
            let error = await #expect(throws: PostgresError.self) { try await store.signIn("p", at: .at(9)) }
            #expect(error?.sqlState?.rawValue == "SW002")
            #expect(try await store.openSession("s", of: "p", at: .at(9)) == false)
            #expect(try await store.session("s")?.endReason == "account-deleted")
        }
    }

    @Test("A time in the future is refused, because it would win over every revocation until then.")
    func future() async throws {
        try await Store.with { store in
            let ahead = WallTime.now() + .seconds(600)
            let signIn = await #expect(throws: PostgresError.self) { try await store.signIn("p", at: ahead) }
            #expect(signIn?.sqlState?.rawValue == "SW006")
            await #expect(throws: PostgresError.self) { try await store.openSession("s", of: "p", at: ahead) }
        }
    }

    @Test(
        "An infinite signed_in_at or created_at is refused by name, and nothing is stored.",
        arguments: [WallTime(microseconds: .min), WallTime(microseconds: .max)]
    )
    func infinite(time: WallTime) async throws {
        try await Store.with { store in
            let signIn = await #expect(throws: PostgresError.self) { try await store.signIn("p", at: time) }
            #expect(signIn?.sqlState?.rawValue == "22023")
            #expect(signIn?.message.contains("signed_in_at is \(time)") == true)
            let start = await #expect(throws: PostgresError.self) {
                try await store.openSession("s", of: "p", at: time)
            }
            #expect(start?.sqlState?.rawValue == "22023")
            #expect(start?.message.contains("created_at is \(time)") == true)
            let people = try await store.texts("SELECT sub FROM siwa.accounts")
            #expect(people.isEmpty)
        }
    }

    @Test("A session that expires at infinity does not expire; expiry at minus infinity is refused.")
    func infiniteExpiry() async throws {
        try await Store.with { store in
            try await store.signIn("p", at: .at(0))
            let open = "SELECT siwa.open_session('com.example.one', 'p', 's', expires_at => "
            let refusal = await #expect(throws: PostgresError.self) { try await store.run(open + "'-infinity')") }
            #expect(refusal?.sqlState?.rawValue == "SW005")
            try await store.run(open + "'infinity')")
            let session = try #require(try await store.session("s"))
            #expect(session.isLive)
            #expect(session.expiresAt == nil)
        }
    }

    @Test("A session id belongs to one person: opening it again is idempotent, and refused for another person.")
    func sessionIdentity() async throws {
        try await Store.with { store in
            try await store.signIn("p", at: .at(0))
            try await store.signIn("q", at: .at(0))
            let first = try await store.openSession("s", of: "p", at: .at(0))
            let again = try await store.openSession("s", of: "p", at: .at(0))
            #expect(first && again)
            let error = await #expect(throws: PostgresError.self) {
                try await store.openSession("s", of: "q", at: .at(0))
            }
            #expect(error?.sqlState?.rawValue == "SW004")
        }
    }

    @Test(
        "A sign-out is recorded before or after a revocation, and a later revocation does not change it.",
        arguments: [false, true]
    )
    func signOutAndRevocations(signsOutFirst: Bool) async throws {
        try await Store.with { store in
            let revoke = "UPDATE siwa.consents SET revoked_at = now() "
            try await store.signIn("p", at: WallTime.now() - .seconds(600))
            try await store.openSession("s", of: "p", at: WallTime.now() - .seconds(600))
            if signsOutFirst {
                #expect(try await store.texts("SELECT siwa.end_session('s')::text") == ["true"])
                try await store.run(revoke + "- interval '5 minutes'")
            } else {
                try await store.run(revoke + "- interval '5 minutes'")
                #expect(try await store.texts("SELECT siwa.end_session('s')::text") == ["false"])
            }
            #expect(try await store.session("s")?.endReason == "consent-revoked")
            try await store.run(revoke + "+ interval '1 minute'")
            #expect(try await store.session("s")?.endReason == "signed-out")
        }
    }

    @Test("A session ends once, for the given reason, and an expired session is not live.")
    func endSession() async throws {
        try await Store.with { store in
            try await store.signIn("p", at: .at(0))
            try await store.openSession("s", of: "p", at: .at(0))
            #expect(try await store.texts("SELECT siwa.end_session('s')::text") == ["true"])
            #expect(try await store.texts("SELECT siwa.end_session('s')::text") == ["false"])
            #expect(try await store.session("s")?.endReason == "signed-out")
            await #expect(throws: PostgresError.self) {
                _ = try await store.texts("SELECT siwa.end_session('s', 'because')::text")
            }
            try await store.run(
                "SELECT siwa.open_session('com.example.one', 'p', 'short', now() - interval '2 h', now() - interval '1 h')"
            )
            #expect(try await store.session("short")?.isLive == false)
            #expect(try await store.session("short")?.endedAt == nil)
            #expect(try await store.texts("SELECT siwa.session_is_live('nobody')::text") == ["false"])
        }
    }

    @Test("The latest observation of an address wins, from any source.")
    func observations() async throws {
        try await Store.with { store in
            try await store.signIn("p", at: .at(10), email: "new@example.com", emailIsPrivate: false)
            try await store.record(.sample("email-enabled", sub: "p", at: .at(5), id: "a", email: "old@example.com"))
            #expect(try await store.state("p")?.email == "new@example.com")
            try await store.record(.sample("email-enabled", sub: "p", at: .at(15), id: "b", email: "later@example.com"))
            #expect(try await store.state("p")?.email == "later@example.com")
        }
    }

    @Test("A real address stays deliverable when the Apple Account is deleted; a relay address does not.")
    func realAddress() async throws {
        try await Store.with { store in
            try await store.signIn("p", at: .at(0), email: "p@example.com", emailIsPrivate: false)
            try await store.signIn("q", at: .at(0), email: "q@privaterelay.appleid.com", emailIsPrivate: true)
            try await store.record(
                .sample("account-deleted", sub: "p", at: .at(1), id: "a"),
                .sample("account-deleted", sub: "q", at: .at(1), id: "b")
            )
            let addresses = try await store.texts("SELECT email FROM siwa.undeliverable_addresses")
            #expect(addresses == ["q@privaterelay.appleid.com"])
        }
    }

    @Test("An operator's ending of sessions is recorded in the audit, which refuses every change.")
    func audit() async throws {
        try await Store.with { store in
            try await store.signIn("p", at: .at(0))
            try await store.openSession("s", of: "p", at: .at(0))
            let ended = try await store.connection.transaction { transaction throws(PostgresError) in
                try Sessions.end(
                    SessionFilter(subject: "p", limit: nil),
                    by: "alice",
                    note: "stolen phone",
                    in: transaction
                )
            }
            #expect(ended == ["s"])
            #expect(try await store.session("s")?.endReason == "operator")
            #expect(
                try await store.texts(
                    "SELECT concat_ws(' ', operator, target, database_role = session_user) FROM siwa.operator_actions"
                ) == ["alice --sub p t"]
            )
            for change in [
                "UPDATE siwa.operator_actions SET note = ''", "DELETE FROM siwa.operator_actions",
                "TRUNCATE siwa.operator_actions",
            ] {
                let error = await #expect(throws: PostgresError.self) { try await store.run(change) }
                #expect(error?.sqlState == .insufficientPrivilege)
            }
        }
    }
}
