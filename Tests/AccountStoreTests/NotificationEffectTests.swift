import AccountStore
import AppleTokens
import Basics
import Postgres
import StoreTestSupport
import TestSupport
import Testing

@Suite("Effects of a notification")
struct NotificationEffectTests {
    @Test("The statement can be planned before the first batch, without storing anything.")
    func plan() async throws {
        try await Store.with { store in
            try await store.connection.withSession { session throws(PostgresError) in
                try Notifications.plan(in: session)
            }
            let plans = try await store.texts(
                "SELECT generic_plans::text FROM pg_prepared_statements WHERE statement LIKE '%INTO siwa.notifications%'"
            )
            #expect(plans == ["1"])
            #expect(try await store.texts("SELECT count(*)::text FROM siwa.notifications") == ["0"])
        }
    }

    @Test("A revocation ends the sessions of its app group and marks the consent revoked.")
    func revocation() async throws {
        try await Store.with { store in
            try await store.signIn("p", at: .at(0))
            try await store.openSession("s", of: "p", at: .at(1))
            try await store.signIn("p", at: .at(1), client: "com.example.two")
            try await store.openSession("other app", of: "p", at: .at(1), client: "com.example.two")
            #expect(try await store.record(.sample("consent-revoked", sub: "p", at: .at(2), id: "a")) == [.applied])
            #expect(try await store.state("p")?.state == "revoked")
            let ended = try await store.session("s")
            #expect(ended?.isLive == false)
            #expect(ended?.endReason == "consent-revoked")
            #expect(ended?.endedAt == .at(2))
            #expect(try await store.session("other app")?.isLive == true)
            #expect(try await store.history("p").last?.sessionsEnded == 1)
        }
    }

    @Test("A revocation that is older than the last sign-in ends no newer session and leaves the consent authorized.")
    func lateRevocation() async throws {
        try await Store.with { store in
            try await store.signIn("p", at: .at(0))
            try await store.openSession("old", of: "p", at: .at(0))
            try await store.signIn("p", at: .at(20))
            try await store.openSession("new", of: "p", at: .at(20))
            try await store.record(.sample("consent-revoked", sub: "p", at: .at(10), id: "a"))
            #expect(try await store.session("old")?.endReason == "consent-revoked")
            #expect(try await store.session("new")?.isLive == true)
            #expect(try await store.state("p")?.state == "authorized")
            let change = try #require(try await store.history("p").last)
            #expect(change.sessionsEnded == 1)
            #expect((change.fromState, change.toState) == ("authorized", "authorized"))
        }
    }

    @Test("A sign-in and a revocation at the same time count as revoked, the safe choice.")
    func tie() async throws {
        try await Store.with { store in
            try await store.signIn("p", at: .at(5))
            try await store.openSession("s", of: "p", at: .at(5))
            try await store.record(.sample("consent-revoked", sub: "p", at: .at(5), id: "a"))
            #expect(try await store.state("p")?.state == "revoked")
            #expect(try await store.session("s")?.isLive == false)
        }
    }

    @Test("A deletion wins whether it arrives first, last or between.", arguments: 0..<3)
    func deletion(place: Int) async throws {
        try await Store.with { store in
            var batch: [ReceivedNotification] = [
                .sample("consent-revoked", sub: "p", at: .at(30), id: "a"),
                .sample("email-enabled", sub: "p", at: .at(40), id: "b", email: "x@privaterelay.appleid.com"),
            ]
            try await store.signIn("p", at: .at(0))
            try await store.signIn("p", at: .at(50), client: "com.example.two")
            try await store.openSession("s", of: "p", at: .at(50), client: "com.example.two")
            batch.insert(.sample("account-delete", sub: "p", at: .at(10), id: "c"), at: place)
            for notification in batch { try await store.record(notification) }
            #expect(try await store.state("p")?.state == "deleted")
            #expect(try await store.state("p", app: "com.example.two")?.state == "deleted")
            #expect(try await store.session("s")?.endReason == "account-deleted")
            #expect(try await store.state("p")?.emailIsDeliverable == false)
            #expect(try await store.texts("SELECT reason FROM siwa.undeliverable_addresses") == ["account-deleted"])
        }
    }

    @Test("A second deletion ends no session again, even if its time is earlier.")
    func deletedTwice() async throws {
        try await Store.with { store in
            try await store.signIn("p", at: .at(0))
            try await store.openSession("s", of: "p", at: .at(1))
            try await store.record(.sample("account-delete", sub: "p", at: .at(20), id: "a"))
            #expect(try await store.record(.sample("account-delete", sub: "p", at: .at(10), id: "b")) == [.unchanged])
            let ended = try await store.texts(
                "SELECT jti || ' ' || sessions_ended FROM siwa.notifications ORDER BY jti"
            )
            #expect(ended == ["a 1", "b 0"])
            #expect(try await store.history("p").filter { $0.facet == "account" }.count == 1)
        }
    }

    @Test("Of several notifications with one time, one is applied only if it changes the state or the address.")
    func addressOfOneTime() async throws {
        try await Store.with { store in
            let outcomes = try await store.record(
                .sample("email-disabled", sub: "p", at: .at(5), id: "a"),
                .sample("email-enabled", sub: "p", at: .at(5), id: "b", email: "x@privaterelay.appleid.com"),
                .sample("email-disabled", sub: "p", at: .at(5), id: "c")
            )
            #expect(outcomes == [.applied, .applied, .unchanged])
        }
    }

    @Test("A deletion counts the sessions that it ended: live sessions of every app group, not ended ones.")
    func deletionEndsSessions() async throws {
        try await Store.with { store in
            try await store.signIn("p", at: .at(0))
            try await store.openSession("revoked", of: "p", at: .at(0))
            try await store.signIn("p", at: .at(1), client: "com.example.two")
            try await store.openSession("live two", of: "p", at: .at(1), client: "com.example.two")
            try await store.openSession("closed", of: "p", at: .at(1), client: "com.example.two")
            try await store.openSession("expired", of: "p", at: .at(1), client: "com.example.two")
            try await store.run(
                """
                UPDATE siwa.account_sessions SET closed_at = now(), close_reason = 'signed-out' WHERE session_id = 'closed';
                UPDATE siwa.account_sessions
                SET created_at = '2020-01-01', signed_in_at = '2020-01-01', expires_at = '2020-01-02'
                WHERE session_id = 'expired'
                """
            )
            try await store.record(.sample("consent-revoked", sub: "p", at: .at(5), id: "a"))
            try await store.signIn("p", at: .at(10))
            try await store.openSession("live one", of: "p", at: .at(10))
            try await store.record(.sample("account-delete", sub: "p", at: .at(20), id: "b"))
            let change = try #require(try await store.history("p").last)
            #expect((change.fromState, change.toState) == ("active", "deleted"))
            #expect(change.sessionsEnded == 2)
        }
    }

    @Test("Facts about an unknown person apply when the person signs in later.")
    func unknownPerson() async throws {
        try await Store.with { store in
            #expect(try await store.record(.sample("consent-revoked", sub: "p", at: .at(10), id: "a")) == [.applied])
            try await store.signIn("p", at: .at(5))
            #expect(try await store.openSession("late", of: "p", at: .at(5)) == false)
            #expect(try await store.session("late")?.endReason == "consent-revoked")
            try await store.signIn("p", at: .at(11))
            #expect(try await store.openSession("again", of: "p", at: .at(11)) == true)
            #expect(try await store.state("p")?.state == "authorized")
        }
    }

    @Test("An event of one team never changes a person of another team with the same sub.")
    func teams() async throws {
        try await Store.with { store in
            try await store.signIn("p", at: .at(0))
            try await store.signIn("p", at: .at(0), client: "com.example.other", email: "x@privaterelay.appleid.com")
            try await store.openSession("theirs", of: "p", at: .at(0), client: "com.example.other")
            try await store.record(
                .sample("account-deleted", sub: "p", at: .at(1), id: "a"),
                .sample("email-disabled", sub: "p", at: .at(1), id: "b", email: "x@privaterelay.appleid.com")
            )
            let theirs = try await store.state("p", team: "BBBBBBBBBB", app: "com.example.other")
            #expect(theirs?.state == "authorized")
            #expect(theirs?.emailIsDeliverable == true)
            #expect(try await store.session("theirs")?.isLive == true)
        }
    }

    @Test("Email events change the address and neither consent nor sessions.")
    func email() async throws {
        try await Store.with { store in
            let address = "x@privaterelay.appleid.com"
            try await store.signIn("p", at: .at(0), email: address, emailIsPrivate: true)
            try await store.openSession("s", of: "p", at: .at(0))
            let disabled = ReceivedNotification.sample("email-disabled", sub: "p", at: .at(1), id: "a", email: address)
            #expect(try await store.record(disabled) == [.applied])
            #expect(try await store.texts("SELECT email FROM siwa.undeliverable_addresses") == [address])
            #expect(try await store.state("p")?.email == address)
            #expect(try await store.session("s")?.isLive == true)
            let enabled = ReceivedNotification.sample("email-enabled", sub: "p", at: .at(2), id: "b", email: address)
            #expect(try await store.record(enabled) == [.applied])
            #expect(try await store.texts("SELECT email FROM siwa.undeliverable_addresses").isEmpty)
            #expect(try await store.history("p").map(\.toState) == ["authorized", "undeliverable", "deliverable"])
        }
    }

    @Test("The outcome is applied, superseded, unchanged or duplicate, also within one batch.")
    func outcomes() async throws {
        try await Store.with { store in
            let first = ReceivedNotification.sample("email-disabled", sub: "p", at: .at(10), id: "a")
            #expect(try await store.record(first) == [.applied])
            #expect(try await store.record(first) == [.duplicate])
            let batch = try await store.record(
                .sample("email-enabled", sub: "p", at: .at(5), id: "b"),
                .sample("email-disabled", sub: "p", at: .at(12), id: "c"),
                .sample("email-disabled", sub: "p", at: .at(11), id: "d"),
                .sample("email-disabled", sub: "p", at: .at(12), id: "c"),
                .sample("consent-revoked", sub: "q", at: .at(1), id: "e"),
                .sample("consent-revoked", sub: "q", at: .at(1), id: "f")
            )
            #expect(batch == [.superseded, .unchanged, .superseded, .duplicate, .applied, .unchanged])
            try await store.record(.sample("account-deleted", sub: "q", at: .at(3), id: "g"))
            let later = try await store.record(
                .sample("consent-revoked", sub: "q", at: .at(9), id: "h"),
                .sample("account-delete", sub: "q", at: .at(9), id: "i")
            )
            #expect(later == [.superseded, .unchanged])
        }
    }

    @Test("A change is attributed to the notification that causes it, never again to one that is repeated with it.")
    func cause() async throws {
        try await Store.with { store in
            let repeated = ReceivedNotification.sample("email-disabled", sub: "p", at: .at(9), id: "a")
            #expect(try await store.record(repeated) == [.applied])
            // An earlier event names an address that forwarding does not concern.
            let address = ReceivedNotification.sample(
                "email-disabled",
                sub: "p",
                at: .at(5),
                id: "b",
                email: "p@example.com",
                emailIsPrivate: false
            )
            #expect(try await store.record(repeated, address) == [.duplicate, .applied])
            let history = try await store.texts(
                "SELECT jti || ' ' || to_state FROM siwa.account_history ORDER BY change_id"
            )
            #expect(history == ["a undeliverable", "b deliverable"])
        }
    }

    @Test("After a deletion, email events change no state and add no history.")
    func addressAfterDeletion() async throws {
        try await Store.with { store in
            try await store.signIn("p", at: .at(0), email: "p@privaterelay.appleid.com", emailIsPrivate: true)
            try await store.record(.sample("account-deleted", sub: "p", at: .at(1), id: "a"))
            let history = try await store.history("p")
            let one = try await store.record(.sample("email-disabled", sub: "p", at: .at(2), id: "b"))
            let other = try await store.record(.sample("email-enabled", sub: "p", at: .at(3), id: "c"))
            #expect(one == [.superseded])
            #expect(other == [.superseded])
            #expect(try await store.history("p") == history)
            #expect(try await store.state("p")?.emailIsDeliverable == false)
        }
    }

    @Test("A jti is stored once, whatever its other claims, and keeps the raw spelling of its type.")
    func duplicates() async throws {
        try await Store.with { store in
            try await store.record(.sample("account-delete", sub: "p", at: .at(0), id: "a"))
            let again = try await store.record(.sample("account-delete", sub: "p", at: .at(40), id: "a"))
            #expect(again == [.duplicate])
            #expect(try await store.texts("SELECT event_type FROM siwa.notifications") == ["account-delete"])
            #expect(try await store.history("p").count == 1)
        }
    }

    @Test("Concurrent requests create the partitions of other months once.")
    func partitions() async throws {
        try await Store.with { store in
            let year = WallTime(seconds: 1_700_000_000)
            try await withThrowingTaskGroup { group in
                for _ in 0..<4 {
                    group.addTask {
                        let connection = try await PostgresConnection.connect(store.database.settings)
                        try await connection.withSession { session throws(PostgresError) in
                            _ = try Notifications.ensurePartitions(
                                from: year,
                                through: year + .seconds(200 * 86_400),
                                in: session
                            )
                        }
                        await connection.close()
                    }
                }
                try await group.waitForAll()
            }
            try await store.record(.sample("email-enabled", sub: "p", at: year, id: "a"))
            let home = try await store.texts("SELECT tableoid::regclass::text FROM siwa.notifications")
            #expect(home == ["siwa.notifications_y2023m11"])
        }
    }

    @Test("A trigger of the operator that changes the jti causes no crash, and every notification has its effect.")
    func changedID() async throws {
        try await Store.with { store in
            try await store.run(
                """
                CREATE FUNCTION public.change_id() RETURNS trigger LANGUAGE plpgsql AS $$
                BEGIN NEW.jti := 'changed ' || NEW.jti; RETURN NEW; END $$;
                CREATE TRIGGER change_id BEFORE INSERT ON siwa.notifications
                    FOR EACH ROW WHEN (NEW.jti <> 'b') EXECUTE FUNCTION public.change_id();
                """
            )
            let outcomes = try await store.record(
                .sample("account-delete", sub: "a", at: .at(2), id: "a"),
                .sample("email-enabled", sub: "b", at: .at(2), id: "b"),
                .sample("account-delete", sub: "c", at: .at(2), id: "c")
            )
            #expect(outcomes == [.applied, .unchanged, .applied])
            let kept = try await store.texts("SELECT jti FROM siwa.notifications ORDER BY 1")
            #expect(kept == ["b", "changed a", "changed c"])
            #expect(try await store.state("a")?.state == "deleted")
        }
    }
}
