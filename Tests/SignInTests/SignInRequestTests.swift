import AppleTokens
import Basics
import Testing

@testable import SignIn

@Suite("Requests to sign in")
struct SignInRequestTests {
    static let token = "eyJhbGciOiJSUzI1NiJ9.e30.c2ln"

    private static func parse(_ json: String, key: String? = nil) throws(Problem) -> SignInRequest {
        try SignInRequest(parsing: Array(json.utf8), idempotencyKey: key)
    }

    /// Parses a request with a token and these further members.
    private static func parse(with members: String, key: String? = nil) throws(Problem) -> SignInRequest {
        let members = members.isEmpty ? "" : "," + members
        return try parse("{\"client_id\":\"com.example.app\",\"identity_token\":\"\(token)\"\(members)}", key: key)
    }

    @Test("A whole request is read with all its members.")
    func whole() throws {
        let request = try Self.parse(
            """
            {"client_id":"com.example.app","identity_token":"\(Self.token)","authorization_code":"c1f9.0.srzwt.x",
             "nonce":"8sIbo-nonce","redirect_uri":"https://example.com/back",
             "user":{"name":{"firstName":"Maria","lastName":"Ruiz"},"email":"other@example.com"},
             "session":{"id":"a3f1c5d2","expires_in":2592000},
             "device":{"platform":"ios","model":"iPhone17,2","label":"Maria's iPhone"},"future":[1]}
            """,
            key: "0123456789abcdef"
        )
        #expect(request.client == ClientID("com.example.app"))
        #expect(request.identityToken == Array(Self.token.utf8))
        #expect(request.authorizationCode == "c1f9.0.srzwt.x")
        #expect(request.nonce == "8sIbo-nonce")
        #expect(request.redirectURI == "https://example.com/back")
        #expect(request.name == PersonName(given: "Maria", family: "Ruiz"))
        #expect(request.session == .init(id: "a3f1c5d2", expiry: .after(.seconds(2_592_000))))
        #expect(request.device == .init(platform: "ios", model: "iPhone17,2", label: "Maria's iPhone"))
        #expect(request.idempotencyKey == "0123456789abcdef")
    }

    @Test("Members that are null count as absent.")
    func null() throws {
        let request = try Self.parse(
            with: "\"authorization_code\":null,\"nonce\":null,\"redirect_uri\":null,\"user\":null,\"session\":null,"
                + "\"device\":null"
        )
        #expect(request.authorizationCode == nil && request.nonce == nil && request.redirectURI == nil)
        #expect(request.name == nil && request.session == nil && request.device == nil)
    }

    @Test("A code alone is enough.")
    func codeOnly() throws {
        let request = try Self.parse("{\"client_id\":\"com.example.app\",\"authorization_code\":\"c1f9\"}")
        #expect(request.identityToken == nil && request.authorizationCode == "c1f9")
    }

    @Test("A time of expiry is read as RFC 3339.")
    func expiresAt() throws {
        let request = try Self.parse(with: "\"session\":{\"id\":\"s\",\"expires_at\":\"2026-12-24T18:00:00Z\"}")
        #expect(request.session?.expiry == .at(WallTime(seconds: 1_798_135_200)))
        #expect(try Self.parse(with: "\"session\":{\"id\":\"s\"}").session?.expiry == nil)
    }

    @Test(
        "Each form of a time in RFC 3339 is accepted up to the year 9999 in UTC.",
        arguments: [
            "2026-12-24t18:00:00z", "2026-12-24T18:00:00.5Z", "2026-12-24T18:00:00+14:00", "9999-12-31T23:59:59Z",
            "9999-12-31T11:59:59.999999-12:00",
        ]
    )
    func forms(text: String) throws {
        let request = try Self.parse(with: "\"session\":{\"id\":\"s\",\"expires_at\":\"\(text)\"}")
        let time = try #require(WallTime(iso8601: text))
        #expect(request.session?.expiry == .at(time))
    }

    @Test(
        "A time of expiry that is not in RFC 3339, or that the answer could not have in it, is refused.",
        arguments: [
            "2027-01-01", "2027-01-01 00:00:00Z", "2027-01-01T00:00Z", "2027-01-01T00:00+00:00", "2027-01-01T00:00:00",
            "2027-01-01T00:00:00.123456", "00000001798135200000", "9999-12-31T23:59:59-12:00",
            "9999-12-31T23:59:59-00:01", "9999-12-31T12:00:00-12:00",
        ]
    )
    func otherForms(text: String) {
        let members = "\"session\":{\"id\":\"s\",\"expires_at\":\"\(text)\"}"
        let problem = #expect(throws: Problem.self) { try Self.parse(with: members) }
        #expect(problem?.reason == .malformedRequest, "\(problem as Any)")
        #expect(problem?.detail.contains("session.expires_at must be a time") == true)
    }

    @Test(
        "A member outside its bounds or of another type is refused by name.",
        arguments: [
            ("{}", "client_id is missing"), ("[]", "must be a JSON object"), ("", "not strict JSON"),
            ("{\"client_id\":\"a\",\"client_id\":\"a\"}", "not strict JSON"),
            ("\u{FEFF}{\"client_id\":\"a\"}", "not strict JSON"),
            ("{\"client_id\":\"a\"}", "Send identity_token, authorization_code, or both"),
            ("{\"client_id\":5,\"identity_token\":\"a\"}", "client_id must be a string"),
            ("{\"client_id\":\"\",\"identity_token\":\"a\"}", "client_id must have 1 to 255 bytes"),
            ("{\"client_id\":\"a\",\"identity_token\":[]}", "identity_token must be a string"),
            ("{\"client_id\":\"a\",\"authorization_code\":\"c d\"}", "authorization_code must have"),
        ]
    )
    func malformed(json: String, words: String) {
        let problem = #expect(throws: Problem.self) { try Self.parse(json) }
        #expect(problem?.reason == .malformedRequest && problem?.detail.contains(words) == true, "\(problem as Any)")
    }

    @Test(
        "An optional member outside its bounds or of another type is refused by name.",
        arguments: [
            ("\"nonce\":\"short\"", "nonce must have 8 to 256"), ("\"nonce\":\"with space\"", "nonce must have"),
            ("\"nonce\":\"ünïcödé-nonce\"", "nonce must have"),
            ("\"redirect_uri\":\"http://example.com\"", "redirect_uri must begin with https://"),
            ("\"user\":[]", "user must be"), ("\"user\":\"[]\"", "user must be"), ("\"user\":\"{\"", "user must be"),
            ("\"user\":7", "user must be"),
            ("\"session\":\"a\"", "session must be an object"), ("\"session\":{}", "session.id is missing"),
            ("\"session\":{\"id\":\"\"}", "session.id must have 1 to 256 bytes"),
            ("\"session\":{\"id\":\"a\\u0000\"}", "not strict JSON"),
            ("\"session\":{\"id\":\"a\",\"expires_in\":0}", "session.expires_in must be a whole number"),
            ("\"session\":{\"id\":\"a\",\"expires_in\":1.5}", "session.expires_in must be"),
            ("\"session\":{\"id\":\"a\",\"expires_in\":-1}", "session.expires_in must be"),
            ("\"session\":{\"id\":\"a\",\"expires_in\":99999999999}", "session.expires_in must be"),
            ("\"session\":{\"id\":\"a\",\"expires_at\":\"tomorrow\"}", "session.expires_at must be a time"),
            ("\"session\":{\"id\":\"a\",\"expires_at\":\"1798135200\"}", "session.expires_at must be a time"),
            (
                "\"session\":{\"id\":\"a\",\"expires_in\":60,\"expires_at\":\"2026-12-24T18:00:00Z\"}",
                "session.expires_in or session.expires_at, not both"
            ),
            ("\"device\":[]", "device must be an object"),
            ("\"device\":{\"label\":5}", "device.label must be a string of at most 100"),
        ]
    )
    func malformedOptional(members: String, words: String) {
        let problem = #expect(throws: Problem.self) { try Self.parse(with: members) }
        #expect(problem?.reason == .malformedRequest && problem?.detail.contains(words) == true, "\(problem as Any)")
    }

    @Test("Each text has a longest length, which is accepted, and one more is not.")
    func lengths() throws {
        let cases: [(prefix: String, length: Int, suffix: String)] = [
            ("\"authorization_code\":\"", 1_024, "\""), ("\"nonce\":\"", 256, "\""),
            ("\"session\":{\"id\":\"", 256, "\"}"), ("\"device\":{\"model\":\"", 100, "\"}"),
        ]
        for (prefix, length, suffix) in cases {
            _ = try Self.parse(with: prefix + String(repeating: "x", count: length) + suffix)
            #expect(throws: Problem.self) {
                try Self.parse(with: prefix + String(repeating: "x", count: length + 1) + suffix)
            }
        }
        let token = String(repeating: "x", count: 16_384)
        _ = try Self.parse("{\"client_id\":\"a\",\"identity_token\":\"\(token)\"}")
        #expect(throws: Problem.self) { try Self.parse("{\"client_id\":\"a\",\"identity_token\":\"\(token)x\"}") }
        let address = "https://example.com/" + String(repeating: "x", count: 1_980)
        _ = try Self.parse(with: "\"redirect_uri\":\"\(address)\"")
        #expect(throws: Problem.self) { try Self.parse(with: "\"redirect_uri\":\"\(address)x\"") }
    }

    @Test(
        "An idempotency key has 16 to 128 visible characters.",
        arguments: [
            ("0123456789abcde", false), ("0123456789abcdef", true), (String(repeating: "k", count: 128), true),
            (String(repeating: "k", count: 129), false), ("0123456789 abcdef", false), ("0123456789abcdeé", false),
        ]
    )
    func idempotencyKey(key: String, isAccepted: Bool) {
        #expect(((try? Self.parse(with: "", key: key)) != nil) == isAccepted)
    }

    @Test("A request never prints its content.")
    func description() throws {
        let request = try Self.parse(with: "\"nonce\":\"secret-nonce\",\"authorization_code\":\"secret-code\"")
        var dumped = ""
        dump(request, to: &dumped)
        for text in ["\(request)", String(reflecting: request), dumped] {
            #expect(!text.contains("secret") && !text.contains("eyJ"))
        }
    }
}

@Suite("Names that come with a sign-in")
struct PersonNameTests {
    private func name(_ user: String) throws -> PersonName? {
        let body = "{\"client_id\":\"a\",\"identity_token\":\"a\",\"user\":\(user)}"
        return try SignInRequest(parsing: Array(body.utf8), idempotencyKey: nil).name
    }

    @Test("Apple's object, its text and the plain form give the same name.")
    func forms() throws {
        let expected = PersonName(given: "Maria", family: "Ruiz")
        #expect(try name("{\"name\":{\"firstName\":\"Maria\",\"lastName\":\"Ruiz\"}}") == expected)
        #expect(
            try name("\"{\\\"name\\\":{\\\"firstName\\\":\\\"Maria\\\",\\\"lastName\\\":\\\"Ruiz\\\"}}\"") == expected
        )
        #expect(try name("{\"given_name\":\"Maria\",\"family_name\":\"Ruiz\"}") == expected)
    }

    @Test(
        "A user without a usable name gives none.",
        arguments: [
            "{}", "\"\"", "{\"name\":null}", "{\"name\":\"Maria\"}", "{\"name\":{\"firstName\":5}}",
            "{\"name\":{\"firstName\":\"  \",\"lastName\":\"\\u0007\\u202e\"}}", "{\"email\":\"a@b.example\"}",
        ]
    )
    func none(user: String) throws {
        #expect(try name(user) == nil)
    }

    @Test("Control and bidirectional characters are removed, joiners stay.")
    func cleaned() {
        let name = PersonName(given: " Ma\u{202E}r\u{0}ia\u{2066}\u{200F} ", family: "نرم\u{200C}افزار\n\u{7F}x")
        #expect(name?.given == "Maria")
        #expect(name?.family == "نرم\u{200C}افزار x")
    }

    @Test("A name is composed, so that equal names have equal bytes.")
    func composed() throws {
        let name = try #require(PersonName(given: "Jose\u{301}", family: nil)?.given)
        #expect(Array(name.utf8) == Array("Jos\u{E9}".utf8))
    }

    @Test("A long name is cut after 100 characters.")
    func long() {
        let name = PersonName(given: String(repeating: "é", count: 101), family: nil)
        #expect(name?.given == String(repeating: "é", count: 100))
    }
}
