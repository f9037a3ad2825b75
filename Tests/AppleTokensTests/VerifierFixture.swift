import AppleTokens
import AppleSimulator
import Basics
import JOSE

/// A trusted simulated Apple, an untrusted one, and a policy for one app, for most tests of verification.
struct VerifierFixture {
    let apple: SimulatedApple
    let stranger: SimulatedApple
    let keys: KeySet
    let policy: NotificationPolicy
    let now = WallTime(seconds: VerifierFixture.issuedAt + 10)

    static let app = "com.example.app"
    static let issuedAt: Int64 = 1_770_000_000
    static let eventTime: Int64 = 1_769_999_990_123
    static let leeway: Int64 = 300

    /// Keys are made once for all tests: making them is the slowest thing here.
    private static let shared = Result { try VerifierFixture(apple: .generate(), stranger: .generate()) }

    static func set() throws -> VerifierFixture { try shared.get() }

    private init(apple: SimulatedApple, stranger: SimulatedApple) throws {
        self.apple = apple
        self.stranger = stranger
        self.keys = KeySet(apple.keys, fetchedAt: nil)
        self.policy = NotificationPolicy(
            audiences: try AudienceMap(parsing: "A1B2C3D4E5/com.example.app+com.example.web,ZZZZZZZZZ9/org.other"),
            leeway: .seconds(VerifierFixture.leeway)
        )
    }

    func decision(on token: String, keys: KeySet? = nil, now: WallTime? = nil) -> Decision {
        let verifier = NotificationVerifier(policy: policy)
        return verifier.verify(token: Array(token.utf8), keys: keys ?? self.keys, now: now ?? self.now)
    }

    func decision(on claims: ClaimText, now: WallTime? = nil) throws -> Decision {
        decision(on: try apple.token(claims: claims.text), now: now)
    }

    func explanation(of token: String, keys: KeySet? = nil, now: WallTime? = nil) -> [Check] {
        let verifier = NotificationVerifier(policy: policy)
        return verifier.explain(token: Array(token.utf8), keys: keys ?? self.keys, now: now ?? self.now)
    }
}

/// A JSON object whose members can be replaced and removed as text, to put a wrong type in any place.
struct ClaimText {
    private var members: [(name: String, json: String)]

    init(_ members: [(name: String, json: String)]) {
        self.members = members
    }

    var text: String {
        "{" + members.map { "\"\($0.name)\":\($0.json)" }.joined(separator: ",") + "}"
    }

    subscript(name: String) -> String? {
        get { members.first { $0.name == name }?.json }
        set {
            guard let newValue else { return members.removeAll { $0.name == name } }
            if let index = members.firstIndex(where: { $0.name == name }) {
                members[index].json = newValue
            } else {
                members.append((name, newValue))
            }
        }
    }

    func with(_ name: String, _ json: String?) -> ClaimText {
        var copy = self
        copy[name] = json
        return copy
    }

    /// The claims of a notification that is verified.
    static var notification: ClaimText { notification(of: .event) }

    /// The claims of a notification of that event, in Apple's spelling.
    static func notification(of event: ClaimText) -> ClaimText {
        ClaimText([
            ("iss", "\"https://appleid.apple.com\""),
            ("aud", "\"\(VerifierFixture.app)\""),
            ("exp", "\(VerifierFixture.issuedAt + 86_400)"),
            ("iat", "\(VerifierFixture.issuedAt)"),
            ("jti", "\"S25cB0PbHs6y97gYYmgydQ\""),
            ("events", JSONValue.quoted(event.text)),
        ])
    }

    /// An event about email, which has every member that an event can have.
    static var event: ClaimText {
        ClaimText([
            ("type", "\"email-disabled\""),
            ("sub", "\"000768.6166f031167141e695698239959f591a.1521\""),
            ("email", "\"abc123@privaterelay.appleid.com\""),
            ("is_private_email", "\"true\""),
            ("event_time", "\(VerifierFixture.eventTime)"),
        ])
    }
}

extension Decision {
    /// The decision in a word or two, without what it holds.
    var summary: String {
        switch self {
        case .verified: "verified"
        case .deadLetter(let letter): letter.reason.rawValue
        case .refused(let rejection): rejection.rawValue
        case .needsKey: "needs-key"
        }
    }

    var notification: VerifiedNotification? {
        switch self {
        case .verified(let notification): notification
        case .deadLetter, .refused, .needsKey: nil
        }
    }

    var deadLetter: DeadLetter? {
        switch self {
        case .deadLetter(let letter): letter
        case .verified, .refused, .needsKey: nil
        }
    }
}
