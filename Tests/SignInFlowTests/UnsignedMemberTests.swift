import AppleTokens
import Basics
import JOSE
import SignIn
import Testing

@testable import SignInFlow

/// `user` and `device` are not signed: people and devices can write anything into them.
@Suite("Members of a request that nobody signed", .timeLimit(.minutes(5)))
struct UnsignedMemberTests {
    /// JSON values, with false if they must not be accepted.
    private static let users: [(text: String, isAccepted: Bool)] = [
        (#"{"name":{"firstName":"Maria","lastName":"Ruiz"},"email":"bob@example.com","email_verified":true}"#, true),
        (#"{"email":"bob@example.com","is_private_email":"true","sub":"000001.a.1","account_id":1}"#, true),
        (#""{\"name\":{\"firstName\":\"Maria\"},\"email\":\"bob@example.com\"}""#, true),
        (#"{"given_name":"'); DELETE FROM siwa.accounts; --","family_name":"<script>alert(1)</script>"}"#, true),
        (#"{"name":{"firstName":"\u202emoc.elpmaxe@bob","lastName":"\u0007\u2066"}}"#, true),
        (#"{"name":{"firstName":{"lastName":"a"},"lastName":["a"]},"state":"deleted","team_id":"BBBBBBBBBB"}"#, true),
        (#"{"name":[{}],"real_user_status":0,"org_id":"o","transfer_sub":"t","aud":"com.example.two"}"#, true),
        ("{}", true), ("\"\"", true), ("null", true),
        (#"{"name":{"firstName":"\#(String(repeating: "é", count: 5_000))"}}"#, true),
        (#"{"name":{"firstName":"\ud800"}}"#, false), (#"{"name":{},"name":{}}"#, false),
        ("[]", false), ("true", false),
        (#""{\"name\":""#, false),
    ]
    private static let devices: [(text: String, isAccepted: Bool)] = [
        (#"{"platform":"ios","model":"iPhone17,2","label":"Maria's iPhone"}"#, true),
        (#"{"label":"'); DROP TABLE siwa.sign_ins; --","model":"{\"admin\":true}","account_id":7}"#, true),
        (#"{"platform":"\u202e","session_id":"s0","refresh":"stored","caller":"root"}"#, true),
        (#"{"platform":null,"model":null,"label":""}"#, true), ("{}", true), ("null", true),
        (#"{"label":"\#(String(repeating: "x", count: 101))"}"#, false), (#"{"platform":{"a":1}}"#, false),
        (#"{"model":7}"#, false), ("[]", false), (#""ios""#, false),
    ]

    /// Everything that is stored about a person but the name and the device.
    private static let facts = """
        SELECT jsonb_build_object(
            'state', a.state, 'email', a.email, 'private', a.email_is_private, 'mail', a.email_deliverable, 'app', a.app_id,
            'team', a.team_id, 'sessions', (SELECT count(*) FROM siwa.live_sessions AS s WHERE s.account_id = a.account_id),
            'tokens', (SELECT count(*) FROM siwa.apple_tokens AS t WHERE t.account_id = a.account_id),
            'sign_in', (
                SELECT to_jsonb(s) - ARRAY[
                    'sign_in_id', 'account_id', 'device', 'presented_digest', 'nonce_digest', 'code_digest', 'session_id',
                    'signed_in_at', 'received_at', 'settled_at'
                ] FROM siwa.sign_ins AS s WHERE s.account_id = a.account_id
            )
        )::text
        FROM siwa.account_states AS a WHERE a.sub =
        """

    @Test("Whatever user and device say, they change the name and the device at most.")
    func nothingElse() async throws {
        try await FlowFixture.with { flow in
            func facts(of person: String, _ members: String) async throws -> String? {
                var device = try flow.apple.signIn(person: person, nonce: "nonce-of-\(person)")
                device.user = .null
                do {
                    let request = try flow.request(
                        device,
                        nonce: "nonce-of-\(person)",
                        session: person,
                        members: members
                    )
                    _ = try await flow.signIn(request)
                } catch {
                    #expect(error as? Problem != nil && (error as? Problem)?.reason == .malformedRequest, "\(members)")
                    #expect(try await flow.texts("\(Self.facts) '\(device.subject)'").isEmpty)
                    return nil
                }
                let facts = try await flow.texts("\(Self.facts) '\(device.subject)'")
                #expect(facts.count == 1)
                return facts.first?.replacing("\(person)@example.com", with: "person@example.com")
            }
            let usual = try #require(try await facts(of: "bob", ""))
            #expect(usual.contains("person@example.com") && usual.contains("authorized"))
            var others = Self.users.map { (",\"user\":\($0.text)", $0.isAccepted) }
            others += Self.devices.map { (",\"device\":\($0.text)", $0.isAccepted) }
            for (number, (members, isAccepted)) in others.enumerated() {
                let found = try await facts(of: "person\(number)", members)
                #expect(found == (isAccepted ? usual : nil), "\(members)")
            }
            #expect(try await flow.texts("SELECT given FROM siwa.kept_names WHERE given ~ '[\\u202e\\u2066]'").isEmpty)
            #expect(try await flow.texts("SELECT max(length(given))::text FROM siwa.kept_names") == ["100"])
            #expect(try await flow.texts("SELECT count(*)::text FROM siwa.sign_ins WHERE device IS NOT NULL") == ["4"])
        }
    }
}
