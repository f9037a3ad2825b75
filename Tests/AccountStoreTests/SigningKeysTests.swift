import AccountStore
import AppleTokens
import Postgres
import StoreTestSupport
import Testing

@Suite("Stored signing keys")
struct SigningKeysTests {
    private static let apple = SigningKeys.Trust(url: "https://apple.example/keys", maximumAge: .seconds(86_400))
    private static let simulator = SigningKeys.Trust(url: "http://127.0.0.1/keys", maximumAge: .seconds(86_400))

    private func keep(_ store: Store, _ names: String..., from url: String, age: Duration = .zero) async throws {
        let keys = names.map { SigningKeys.Kept(keyID: $0, jwk: #"{"kid":"\#($0)","from":"\#(url)"}"#) }
        try await store.connection.withSession { session throws(PostgresError) in
            try SigningKeys.keep(keys, from: url, age: age, in: session)
        }
    }

    private func all(_ store: Store, _ trust: SigningKeys.Trust) async throws -> [SigningKeys.Seen] {
        try await store.connection.withSession { session throws(PostgresError) in
            try SigningKeys.all(trust, in: session)
        }
    }

    private func latest(_ store: Store, _ trust: SigningKeys.Trust) async throws -> [String] {
        try await store.connection.withSession { session throws(PostgresError) in
            try SigningKeys.latestSet(trust, in: session).map(\.key.keyID)
        }
    }

    @Test("A key of another URL is not trusted, not even with the same kid.")
    func otherURL() async throws {
        try await Store.with { store in
            try await keep(store, "a", "s", from: Self.simulator.url)
            #expect(try await all(store, Self.apple).isEmpty)
            #expect(try await latest(store, Self.apple).isEmpty)
            try await keep(store, "a", from: Self.apple.url)
            #expect(try await latest(store, Self.apple) == ["a"])
            let jwk = try await all(store, Self.apple).map(\.key.jwk)
            #expect(jwk.count == 1 && jwk.allSatisfy { $0.contains("apple.example") }, "\(jwk)")
            #expect(try await latest(store, Self.simulator) == ["a", "s"])
            let keptAt = try await store.connection.withSession { session throws(PostgresError) in
                try DatabaseHealth.keysKeptAt(from: "https://elsewhere.example", in: session)
            }
            #expect(keptAt == nil)
        }
    }

    @Test("Keys that could be stored only later have the time of their fetch, and replace none of a later fetch.")
    func storedLate() async throws {
        try await Store.with { store in
            try await keep(store, "a", from: Self.apple.url, age: .seconds(86_401))
            #expect(try await all(store, Self.apple).isEmpty)
            try await keep(store, "b", from: Self.apple.url)
            try await keep(store, "a", "b", from: Self.apple.url, age: .seconds(3_600))
            #expect(try await all(store, Self.apple).map(\.key.keyID) == ["a", "b"])
            #expect(try await latest(store, Self.apple) == ["b"])
        }
    }

    @Test("A time in the future, of a clock that was wrong, does not outlive the next fetch.")
    func wrongClock() async throws {
        try await Store.with { store in
            try await keep(store, "a", from: Self.apple.url)
            try await store.run("UPDATE siwa.signing_keys SET last_seen = now() + interval '1 year'")
            try await keep(store, "a", "b", from: Self.apple.url)
            #expect(try await latest(store, Self.apple) == ["a", "b"])
        }
    }

    @Test("A key that no fetch has confirmed within the maximum age is not trusted until a fetch confirms it.")
    func maximumAge() async throws {
        try await Store.with { store in
            try await keep(store, "a", "b", from: Self.apple.url)
            try await store.run("UPDATE siwa.signing_keys SET last_seen = now() - interval '86399 seconds'")
            #expect(try await latest(store, Self.apple) == ["a", "b"])
            try await store.run("UPDATE siwa.signing_keys SET last_seen = now() - interval '86401 seconds'")
            #expect(try await latest(store, Self.apple).isEmpty)
            #expect(try await all(store, Self.apple).isEmpty)
            try await keep(store, "b", from: Self.apple.url)
            #expect(try await all(store, Self.apple).map(\.key.keyID) == ["b"])
        }
    }
}
