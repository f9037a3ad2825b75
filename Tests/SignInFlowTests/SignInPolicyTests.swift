import AppleTokens
import Basics
import JOSE
import SignIn
import Testing

@testable import SignInFlow

@Suite("Nonces of sign-ins")
struct SignInPolicyTests {
    private let client = ClientID("com.example.app")
    private let keys: SealingKeys
    private let issued: String

    init() throws {
        keys = try SealingKeys(parsing: SealingKeys.newLine(name: "k1"))
        issued = try IssuedNonces(keys: keys).issue(for: ClientID("com.example.app"), now: .now())
    }

    private func policy(_ nonce: NoncePolicy, issues: Bool = true) throws -> SignInPolicy {
        try SignInPolicy(
            audiences: AudienceMap(parsing: "A1B2C3D4E5/com.example.app"),
            identity: IdentityPolicy(nonce: nonce),
            exchange: .preferred,
            keepsNames: false,
            sealingKeys: issues ? keys : nil,
            secrets: nil
        )
    }

    /// nil if the nonce is accepted.
    private func reason(_ body: () throws(Problem) -> Void) -> Problem.Reason? {
        do throws(Problem) {
            try body()
            return nil
        } catch {
            return error.reason
        }
    }

    private let late = Duration.seconds(601)

    @Test("A nonce of siwad is accepted in its ten minutes, with every policy.", arguments: NoncePolicy.allCases)
    func ownNonce(nonce: NoncePolicy) throws {
        let policy = try policy(nonce)
        #expect(reason { () throws(Problem) in try policy.check(issued, of: client, usedAt: .now()) } == nil)
        #expect(
            reason { () throws(Problem) in try policy.check(issued, of: client, usedAt: .now() + late) }
                == .nonceExpired
        )
    }

    @Test("The policy issued refuses a nonce of another person, of another client, and none at all.")
    func foreignNonce() throws {
        let policy = try policy(.issued)
        #expect(
            reason { () throws(Problem) in try policy.check("foreign", of: client, usedAt: .now()) } == .nonceMismatch
        )
        #expect(
            reason { () throws(Problem) in try policy.check(issued, of: ClientID("com.example.web"), usedAt: .now()) }
                == .nonceMismatch
        )
        #expect(reason { () throws(Problem) in try policy.check(nil, of: client, usedAt: .now()) } == .nonceMissing)
    }

    @Test("The other policies accept a nonce of the application.", arguments: [NoncePolicy.required, .optional])
    func applicationNonce(nonce: NoncePolicy) throws {
        for issues in [true, false] {
            let policy = try policy(nonce, issues: issues)
            #expect(reason { () throws(Problem) in try policy.check("foreign", of: client, usedAt: .now()) } == nil)
            #expect(reason { () throws(Problem) in try policy.check(nonceOfCode: "foreign", of: client) } == nil)
        }
    }

    @Test("A code alone needs a nonce, except with the policy optional.")
    func codeAlone() throws {
        for (nonce, refusal) in [
            (NoncePolicy.issued, Problem.Reason.nonceMissing), (.required, .nonceMissing), (.optional, nil),
        ] {
            let policy = try policy(nonce)
            #expect(reason { () throws(Problem) in try policy.check(nonceOfCode: nil, of: client) } == refusal)
        }
        let policy = try policy(.issued)
        #expect(reason { () throws(Problem) in try policy.check(nonceOfCode: "foreign", of: client) } == .nonceMismatch)
    }

    @Test("A repeated code is recognised after the time of its nonce.")
    func repeatedCode() throws {
        let old = try IssuedNonces(keys: keys).issue(for: client, now: .now() - late - late)
        let policy = try policy(.issued)
        #expect(reason { () throws(Problem) in try policy.check(nonceOfCode: old, of: client) } == nil)
        #expect(reason { () throws(Problem) in try policy.check(old, of: client, usedAt: .now()) } == .nonceExpired)
    }
}
