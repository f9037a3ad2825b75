import AccountStore
import AppleTokens
import Postgres
import StoreTestSupport
import Testing

@Suite("Storing dead letters")
struct DeadLetterTests {
    private func letter(
        _ token: String,
        reason: DeadLetterReason = .unknownAudience,
        id: String? = "j",
        key: String? = "k"
    ) -> ReceivedDeadLetter {
        let bytes = Array(token.utf8)
        return ReceivedDeadLetter(
            DeadLetter(
                reason: reason,
                detail: "A sentence.",
                notificationID: id,
                audience: "com.example.none",
                verifiedKeyID: key,
                token: bytes
            ),
            tokenDigest: [UInt8](repeating: bytes.first ?? 0, count: 32),
            receivedAt: .at(0)
        )
    }

    private func keep(_ store: Store, _ letters: ReceivedDeadLetter...) async throws -> [Bool] {
        try await store.connection.withSession { session throws(PostgresError) in
            try DeadLetters.record(letters, in: session).map { $0 != nil }
        }
    }

    @Test("A token has one open letter, however often it arrives; further deliveries are counted.")
    func once() async throws {
        try await Store.with { store in
            let first = try await keep(store, letter("a"), letter("b"), letter("a"))
            #expect(first == [true, true, false])
            #expect(try await keep(store, letter("a")) == [false])
            #expect(try await store.texts("SELECT deliveries::text FROM siwa.dead_letters ORDER BY id") == ["2", "1"])
        }
    }

    @Test("A token that is recorded as a notification gets no letter.")
    func recorded() async throws {
        try await Store.with { store in
            try await store.record(.sample("email-enabled", sub: "p", at: .at(0), id: "known"))
            #expect(try await keep(store, letter("a", reason: .expired, id: "known")) == [false])
            #expect(try await store.texts("SELECT id::text FROM siwa.dead_letters").isEmpty)
        }
    }

    @Test("Open letters are counted by reason, and the verifying key is recorded.")
    func counts() async throws {
        try await Store.with { store in
            _ = try await keep(
                store,
                letter("a"),
                letter("b", reason: .expired),
                letter("c", reason: .keysUnavailable, id: nil, key: nil)
            )
            let counts = try await store.connection.withSession { session throws(PostgresError) in
                try DeadLetters.countOpen(in: session)
            }
            #expect(counts == [.unknownAudience: 1, .expired: 1, .keysUnavailable: 1])
            let verified = try await store.texts(
                "SELECT reason FROM siwa.dead_letters WHERE verified_kid = 'k' AND verified_at = received_at ORDER BY id"
            )
            #expect(verified.sorted() == ["expired", "unknown-audience"])
        }
    }
}
