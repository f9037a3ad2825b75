import AccountStore
import Basics
import Postgres
import StoreTestSupport
import TestSupport
import Testing

/// Removes conditions from the functions of sign-ins, on each of which a promise rests.
@Suite("Conditions of sign-ins")
struct SignInMutantTests {
    struct Mutant: Sendable, CustomTestStringConvertible {
        let testDescription: String
        let function: String
        let old: String
        let new: String
        /// What is seen with the function as it is.
        let expected: [String]
        let scenario: @Sendable (Store) async throws -> [String]
    }

    private static let tokens = "SELECT concat_ws(' ', client_id, state) FROM siwa.apple_tokens"

    static let mutants = [
        Mutant(
            testDescription: "a token of the moment of a revocation reserves nothing",
            function: "reserve_sign_in",
            old: "WHEN reserve_sign_in.issued_at <= (",
            new: "WHEN reserve_sign_in.issued_at < (",
            expected: ["consent-revoked"]
        ) { store in
            _ = try await store.signInWhole("a")
            try await store.record(.sample("consent-revoked", sub: "p", at: .at(5), id: "r"))
            return [try await store.reserve(.sample("b", at: .at(5))).word]
        },
        Mutant(
            testDescription: "a token is not repeated with another code",
            function: "reserve_sign_in",
            old: "(known.client_id, known.nonce_digest, known.code_digest)",
            new: "(known.client_id, known.nonce_digest, reserve_sign_in.code_digest)",
            expected: ["token-used"]
        ) { store in
            let id = try #require(try await store.reserve(.sample("a", code: "c", session: "s")).signInID)
            _ = try await store.settle(.sample(id, session: "s"))
            return [try await store.reserve(.sample("a", code: "d", session: "s")).word]
        },
        Mutant(
            testDescription: "a repetition of a settled sign-in is one of the same session",
            function: "reserve_sign_in",
            old: "ELSE known.session_id = reserve_sign_in.session_id",
            new: "ELSE true",
            expected: ["token-used"]
        ) { store in
            _ = try await store.signInWhole("a", session: "s")
            return [try await store.reserve(.sample("a", session: "t")).word]
        },
        Mutant(
            testDescription: "a repetition after a revocation is refused",
            function: "reserve_sign_in",
            old: "ELSIF known.signed_in_at <= (",
            new: "ELSIF known.signed_in_at < (",
            expected: ["consent-revoked"]
        ) { store in
            // In the flow with a code only: the reservation knows no person.
            let new = NewSignIn.sample("a", of: nil, session: "s")
            let id = try #require(try await store.reserve(new).signInID)
            _ = try await store.settle(.sample(id, at: .at(5), session: "s"))
            try await store.record(.sample("consent-revoked", sub: "p", at: .at(5), id: "r"))
            return [try await store.reserve(new).word]
        },
        Mutant(
            testDescription: "a sign-in under way is not taken over",
            function: "reserve_sign_in",
            old: "ELSIF known.lease_until > clock_timestamp() THEN",
            new: "ELSIF false THEN",
            expected: ["in-progress"]
        ) { store in
            _ = try await store.reserve(.sample("a", session: "s"))
            return [try await store.reserve(.sample("a", session: "s")).word]
        },
        Mutant(
            testDescription: "a sign-in that is taken over can't be settled by the process that was too slow",
            function: "reserve_sign_in",
            old: "sign_in_id = DEFAULT,",
            new: "",
            expected: ["in-progress"]
        ) { store in
            let slow = try #require(try await store.reserve(.sample("a", session: "s")).signInID)
            try await store.endLeases()
            _ = try await store.reserve(.sample("a", session: "s"))
            return [try await store.settle(.sample(slow, session: "s")).word]
        },
        Mutant(
            testDescription: "a code that the earlier attempt may have used counts as lost",
            function: "reserve_sign_in",
            old: "code_attempts = s.code_attempts + 1",
            new: "code_attempts = s.code_attempts",
            expected: ["lost"]
        ) { store in
            _ = try await store.reserve(.sample("a", session: "s"))
            try await store.endLeases()
            let id = try #require(try await store.reserve(.sample("a", session: "s")).signInID)
            let settled = try await store.settle(.sample(id, refresh: .refused("invalid_grant"), session: "s")).answer
            return ["\(try #require(settled).refresh)"]
        },
        Mutant(
            testDescription: "a sign-in of the moment of a revocation is not settled",
            function: "settle_sign_in",
            old: "IF revoked >= settle_sign_in.signed_in_at THEN",
            new: "IF revoked > settle_sign_in.signed_in_at THEN",
            expected: ["consent-revoked"]
        ) { store in
            let id = try #require(try await store.reserve(.sample("a", at: .at(5))).signInID)
            try await store.record(.sample("consent-revoked", sub: "p", at: .at(5), id: "r"))
            return [try await store.settle(.sample(id, at: .at(5))).word]
        },
        Mutant(
            testDescription: "a sign-in after a revocation deletes the token from before",
            function: "settle_sign_in",
            old: "AND t.obtained_at <= revoked",
            new: "AND t.obtained_at < revoked - interval '1 year'",
            expected: []
        ) { store in
            _ = try await store.signInWhole("a", refresh: .stored)
            try await store.record(.sample("consent-revoked", sub: "p", at: .at(5), id: "r"))
            _ = try await store.signInWhole("b", at: .at(9))
            return try await store.texts(tokens)
        },
        Mutant(
            testDescription: "the token of a later sign-in stays",
            function: "store_refresh_token",
            old: "WHERE t.obtained_at <= excluded.obtained_at",
            new: "",
            expected: ["true"]
        ) { store in
            let early = try await store.pendingExchange("a", at: .at(1))
            _ = try await store.signInWhole("b", at: .at(9), refresh: .stored)
            let later = try await store.texts("SELECT obtained_at::text FROM siwa.apple_tokens")
            _ = try await store.finishExchange(early, .stored(Store.token))
            return ["\(try await store.texts("SELECT obtained_at::text FROM siwa.apple_tokens") == later)"]
        },
        Mutant(
            testDescription: "a code is traded by one process at a time",
            function: "claim_exchanges",
            old: "AND (s.lease_until IS NULL OR s.lease_until NOT BETWEEN clock_timestamp() "
                + "AND clock_timestamp() + interval '90 s')",
            new: "",
            expected: ["1", "0"]
        ) { store in
            _ = try await store.pendingExchange("a")
            return ["\(try await store.claimExchanges().count)", "\(try await store.claimExchanges().count)"]
        },
        Mutant(
            testDescription: "a token that arrives after the revocation is not stored",
            function: "finish_exchange",
            old: "OR revoked >= known.signed_in_at",
            new: "",
            expected: []
        ) { store in
            let id = try await store.pendingExchange("a", at: .at(5))
            try await store.record(.sample("consent-revoked", sub: "p", at: .at(5), id: "r"))
            _ = try await store.finishExchange(id, .stored(Store.token))
            return try await store.texts(tokens)
        },
        Mutant(
            testDescription: "a token that arrives after the deletion is not stored",
            function: "finish_exchange",
            old: "deleted IS NOT NULL OR",
            new: "",
            expected: []
        ) { store in
            let id = try await store.pendingExchange("a", at: .at(5))
            try await store.record(.sample("account-delete", sub: "p", at: .at(5), id: "d"))
            _ = try await store.finishExchange(id, .stored(Store.token))
            return try await store.texts(tokens)
        },
        Mutant(
            testDescription: "a process that was too slow brings back no code that was given up",
            function: "finish_exchange",
            old: "known.refresh <> 'pending' AND (outcome <> 'stored' OR known.refresh = 'stored')",
            new: "false",
            expected: ["lost"]
        ) { store in
            let id = try await store.pendingExchange("a")
            _ = try await store.finishExchange(id, .lost)
            _ = try await store.finishExchange(id, .refused("invalid_client"))
            return try await store.texts("SELECT refresh FROM siwa.sign_ins")
        },
    ]

    @Test(
        "Without one of its conditions, a function breaks a promise that it keeps with all of them.",
        arguments: mutants
    )
    func isNeeded(mutant: Mutant) async throws {
        #expect(try await Store.with { try await mutant.scenario($0) } == mutant.expected)
        let changed = try await Store.with { store in
            try await store.change(mutant.function, [(mutant.old, mutant.new)])
            do {
                return try await mutant.scenario(store)
            } catch let error as PostgresError where error.sqlState?.classCode == "23" {
                // A constraint held the promise. Another error, such as one of syntax, says nothing about the condition.
                return ["\(error)"]
            }
        }
        #expect(changed != mutant.expected)
    }
}

extension Reservation {
    fileprivate var word: String {
        switch self {
        case .reserved: "reserved"
        case .repeated: "repeated"
        case .refused(let conflict): conflict.rawValue
        }
    }
}

extension Settled {
    fileprivate var word: String {
        switch self {
        case .settled: "settled"
        case .refused(let conflict): conflict.rawValue
        }
    }
}
