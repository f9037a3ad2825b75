import AccountStore
import AppleTokens
import Postgres
import StoreTestSupport
import TestSupport
import Testing

@Suite("Source of a register")
struct AccountRegisterTests {
    /// One text per register: `revoked_at com.example.one <- r1 endpoint`.
    private func sources(_ store: Store, _ sub: String = "p", team: String = "AAAAAAAAAA") async throws -> [String] {
        let registers = try await store.connection.withSession { session throws(PostgresError) in
            try Accounts.sources(subject: Subject(sub), team: TeamID(team), in: session)
        }
        return registers.map { register in
            let source =
                switch register.source {
                case .application: "sign-in"
                case .notification(let notification): "\(notification.id) \(notification.source)"
                case .dropped(let id): "dropped \(id ?? "-")"
                }
            return "\(register.name.rawValue) \(register.app?.rawValue ?? "all") <- \(source)"
        }
    }

    @Test("The source is the first notification with the time of the register; otherwise the application.")
    func attribution() async throws {
        try await Store.with { store in
            try await store.signIn("p", at: .at(-900), email: "a@x", emailIsPrivate: true)
            try await store.record(.sample("consent-revoked", sub: "p", at: .at(-600), id: "old"))
            try await store.record(.sample("consent-revoked", sub: "p", at: .at(-300), id: "r1"))
            try await store.record(.sample("consent-revoked", sub: "p", at: .at(-300), id: "r2"))
            try await store.record(
                .sample("consent-revoked", sub: "p", at: .at(-200), id: "two", app: "com.example.two")
            )
            try await store.record(.sample("email-disabled", sub: "p", at: .at(-100), id: "off"))
            #expect(
                try await sources(store) == [
                    "email_observed_at all <- sign-in", "forwarding_disabled_at all <- off endpoint",
                    "authorized_at com.example.one <- sign-in", "revoked_at com.example.one <- r1 endpoint",
                    "revoked_at com.example.two <- two endpoint",
                ]
            )
        }
    }

    @Test(
        "Notifications of another team with the same sub, or of another person with the same time, are not the source."
    )
    func others() async throws {
        try await Store.with { store in
            try await store.record(.sample("account-deleted", sub: "p", at: .at(-100), id: "ours"))
            try await store.record(
                .sample(
                    "account-deleted",
                    sub: "p",
                    at: .at(-100),
                    id: "theirs",
                    team: "BBBBBBBBBB",
                    app: "com.example.other"
                ),
                .sample("account-deleted", sub: "q", at: .at(-100), id: "hers")
            )
            #expect(try await sources(store) == ["deleted_at all <- ours endpoint"])
            #expect(try await sources(store, team: "BBBBBBBBBB") == ["deleted_at all <- theirs endpoint"])
        }
    }

    @Test("After retention the history names the notification, and an address is not attributed to a sign-in.")
    func dropped() async throws {
        try await Store.with { store in
            try await store.record(
                .sample("email-enabled", sub: "p", at: .at(-300), id: "on", email: "a@x", emailIsPrivate: true)
            )
            try await store.record(.sample("consent-revoked", sub: "p", at: .at(-200), id: "r1"))
            #expect(try await sources(store).first == "email_observed_at all <- on endpoint")
            try await store.run("TRUNCATE siwa.notifications")
            #expect(
                try await sources(store) == [
                    "email_observed_at all <- dropped -", "forwarding_enabled_at all <- dropped -",
                    "revoked_at com.example.one <- dropped r1",
                ]
            )
        }
    }

    @Test("The register of an erased address is left out.")
    func erased() async throws {
        try await Store.with { store in
            try await store.record(.sample("account-deleted", sub: "p", at: .at(-100), id: "d"))
            try await store.run(
                "UPDATE siwa.accounts SET email_observed_at = 'infinity', erased_at = now() WHERE deleted_at IS NOT NULL"
            )
            #expect(try await sources(store) == ["deleted_at all <- d endpoint"])
            let registers = try await store.connection.withSession { session throws(PostgresError) in
                try Accounts.registers(subject: "p", team: nil, in: session)
            }
            #expect(registers.first?.emailObservedAt == nil)
            #expect(registers.first?.erasedAt != nil)
        }
    }
}
