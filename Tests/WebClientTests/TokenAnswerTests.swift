import JOSE
import Testing

@testable import WebClient

@Suite("Answers of the token endpoint")
struct TokenAnswerTests {
    private func answer(_ status: Int, _ body: String, retryAfter: String? = nil) -> TokenAnswer {
        TokenAnswer(status: status, retryAfter: retryAfter, body: Array(body.utf8))
    }

    private static func refusal(_ code: TokenRefusal.Code, _ detail: TokenRefusal.Detail = .unspecified) -> TokenRefusal
    {
        TokenRefusal(code: code, detail: detail)
    }

    /// Every error body that is documented or was observed.
    private static let known: [(String, TokenAnswer)] = [
        (
            #"{"error":"invalid_grant","error_description":"The code has already been used."}"#,
            .grantRefused(refusal(.invalidGrant, .alreadyUsed))
        ),
        (
            #"{"error":"invalid_grant","error_description":"The code has expired or has been revoked."}"#,
            .grantRefused(refusal(.invalidGrant, .expiredOrRevoked))
        ),
        (
            #"{"error":"invalid_grant","error_description":"The token has expired or has been revoked."}"#,
            .grantRefused(refusal(.invalidGrant, .expiredOrRevoked))
        ),
        (
            #"{"error":"invalid_grant","error_description":"client_id mismatch. The code was not issued to com.a.www"}"#,
            .grantRefused(refusal(.invalidGrant, .otherClient))
        ),
        (
            #"{"error":"invalid_grant","error_description":"redirect_uri mismatch. The code was not issued to https://a."}"#,
            .grantRefused(refusal(.invalidGrant, .otherRedirectURI))
        ),
        (#"{"error":"invalid_grant"}"#, .grantRefused(refusal(.invalidGrant))),
        (#"{"error":"invalid_grant","error_description":"Other words."}"#, .grantRefused(refusal(.invalidGrant))),
        (#"{"error":"invalid_request"}"#, .requestRefused(refusal(.invalidRequest))),
        (#"{"error":"invalid_client"}"#, .clientRefused(refusal(.invalidClient))),
        (#"{"error":"invalid_client","email_verified":false}"#, .clientRefused(refusal(.invalidClient))),
        (#"{"error":"unauthorized_client"}"#, .clientRefused(refusal(.unauthorizedClient))),
        (#"{"error":"unsupported_grant_type"}"#, .clientRefused(refusal(.unsupportedGrantType))),
        (#"{"error":"invalid_scope"}"#, .clientRefused(refusal(.invalidScope))),
        (#"{"error":"new_error"}"#, .clientRefused(refusal(.init(rawValue: "new_error")))),
    ]

    @Test("Each known error body has its meaning, with 400 and with any other status of a client's error.")
    func errors() {
        for (body, meaning) in Self.known {
            for status in [400, 401, 403] { #expect(answer(status, body) == meaning, "\(status) \(body)") }
            #expect(answer(429, body) == .unavailable(Unavailability(.throttled)))
            #expect(answer(500, body) == .unavailable(Unavailability(.serverError)))
            #expect(answer(200, body) == .unavailable(Unavailability(.notUnderstood)))
        }
    }

    @Test(
        "What is no answer of a token endpoint says nothing about the grant.",
        arguments: [
            "", "<html>", "{}", "[]", "null", #"{"error":1}"#, #"{"error":""}"#, #"{"error":"a b"}"#,
            #"{"error":"invalid_grant","error":"invalid_client"}"#, "{\"error\":\"invalid_grant\"} x",
            "\u{FEFF}{\"error\":\"invalid_grant\"}",
        ]
    )
    func notUnderstood(_ body: String) {
        for status in [200, 301, 302, 307, 400, 404] {
            #expect(answer(status, body) == .unavailable(Unavailability(.notUnderstood)), "\(status)")
        }
        let latin1 = Array(#"{"error":"invalid_grant","error_description":""#.utf8) + [0xE9] + Array(#""}"#.utf8)
        #expect(TokenAnswer(status: 400, retryAfter: nil, body: latin1) == .unavailable(Unavailability(.notUnderstood)))
    }

    @Test("Retry-After is kept in seconds, also if it is a date, which is compared with the Date of the answer.")
    func retryAfter() {
        #expect(answer(429, "", retryAfter: "7") == .unavailable(Unavailability(.throttled, retryAfter: 7)))
        #expect(answer(503, "", retryAfter: "0") == .unavailable(Unavailability(.serverError, retryAfter: 0)))
        for text in ["-1", "x", ""] {
            #expect(answer(503, "", retryAfter: text) == .unavailable(Unavailability(.serverError)))
        }
        let date = "Wed, 21 Oct 2026 07:27:00 GMT"
        for (text, seconds) in [("Wed, 21 Oct 2026 07:28:00 GMT", 60), ("Wed, 21 Oct 2026 07:26:59 GMT", 0)] {
            let answer = TokenAnswer(status: 503, retryAfter: text, date: date, body: [])
            #expect(answer == .unavailable(Unavailability(.serverError, retryAfter: seconds)))
        }
        // Without a Date, this machine's time counts.
        #expect(
            answer(503, "", retryAfter: "Thu, 01 Jan 2026 00:00:00 GMT")
                == .unavailable(Unavailability(.serverError, retryAfter: 0))
        )
    }

    private static let tokens =
        #"{"access_token":"a-secret","token_type":"Bearer","expires_in":3600,"#
        + #""refresh_token":"r-secret","id_token":"i-secret"}"#

    @Test("A success keeps the hash of the access token and not the token.")
    func success() throws {
        guard case .issued(let issued) = answer(200, Self.tokens) else {
            Issue.record("not issued")
            return
        }
        #expect(issued.refreshToken == "r-secret" && issued.identityToken == "i-secret")
        #expect(issued.accessTokenHash == TokenHash.of("a-secret"))
        var dumped = ""
        dump(answer(200, Self.tokens), to: &dumped)
        for text in [dumped, "\(issued)", String(reflecting: issued), "\(answer(200, Self.tokens))"] {
            #expect(!text.contains("secret"), "\(text)")
        }
        let refreshed = answer(200, #"{"access_token":"a","token_type":"bearer"}"#)
        guard case .issued(let tokens) = refreshed else {
            Issue.record("not issued")
            return
        }
        #expect(tokens.refreshToken == nil && tokens.identityToken == nil)
        for body in [
            #"{"token_type":"Bearer"}"#, #"{"access_token":"","token_type":"Bearer"}"#, #"{"access_token":"a"}"#,
        ] {
            #expect(answer(200, body) == .unavailable(Unavailability(.notUnderstood)))
        }
    }

    @Test("The identity token of an answer must fit the access token and the presented token.")
    func matching() throws {
        guard case .issued(let issued) = answer(200, Self.tokens) else {
            Issue.record("not issued")
            return
        }
        let hash = TokenHash.of("a-secret")
        #expect(issued.matches(subject: "p", accessTokenHash: hash, presentedSubject: "p"))
        #expect(issued.matches(subject: "p", accessTokenHash: hash, presentedSubject: nil))
        #expect(!issued.matches(subject: "q", accessTokenHash: hash, presentedSubject: "p"))
        #expect(!issued.matches(subject: "p", accessTokenHash: TokenHash.of("b"), presentedSubject: "p"))
        #expect(!issued.matches(subject: "p", accessTokenHash: nil, presentedSubject: "p"))
        // Canonically equivalent, but another person.
        #expect(!issued.matches(subject: "\u{212A}", accessTokenHash: hash, presentedSubject: "K"))
    }
}

@Suite("Grants")
struct TokenGrantTests {
    @Test("A form has the fields that Apple documents, percent-encoded.")
    func form() {
        let code = TokenGrant.code("c.0-_~", redirectURI: nil, clientID: "com.a", clientSecret: "a+b/c=")
        #expect(code.form == "client_id=com.a&client_secret=a%2Bb%2Fc%3D&code=c.0-_~&grant_type=authorization_code")
        let web = TokenGrant.code("c", redirectURI: "https://a.b/é?x&y", clientID: "i", clientSecret: "s")
        #expect(web.form.hasSuffix("&redirect_uri=https%3A%2F%2Fa.b%2F%C3%A9%3Fx%26y"))
        let refresh = TokenGrant.refresh("r 1\n", clientID: "i", clientSecret: "s")
        #expect(refresh.form == "client_id=i&client_secret=s&grant_type=refresh_token&refresh_token=r%201%0A")
    }

    @Test("Descriptions have no secrets.")
    func descriptions() {
        let grants = [
            TokenGrant.code("hidden", redirectURI: "hidden", clientID: "i", clientSecret: "hidden"),
            TokenGrant.refresh("hidden", clientID: "i", clientSecret: "hidden"),
        ]
        for grant in grants {
            var dumped = ""
            dump(grant, to: &dumped)
            for text in [dumped, "\(grant)", String(reflecting: grant), "\([grant])"] {
                #expect(!text.contains("hidden"), "\(text)")
            }
        }
    }
}

@Suite("The choice among keys of a client")
struct ClientKeyChoiceTests {
    @Test("The next key is tried once, and stays if it is accepted.")
    func next() throws {
        var choice = try #require(ClientKeyChoice(keyIDs: ["A", "B", "C"]))
        #expect(choice.keyID == "A")
        #expect(choice.clientRefused(tried: ["A"]) == .tryAgain(keyID: "B"))
        #expect(choice.keyID == "A")
        #expect(choice.clientRefused(tried: ["A", "B"]) == .giveUp(tried: ["A", "B"]))
        choice.accepted("B")
        #expect(choice.keyID == "B")
        #expect(choice.clientRefused(tried: ["B"]) == .tryAgain(keyID: "C"))
        choice.accepted("C")
        #expect(choice.clientRefused(tried: ["C"]) == .tryAgain(keyID: "A"))
    }

    @Test("A single key is tried once, and there is no choice among none.")
    func few() throws {
        let choice = try #require(ClientKeyChoice(keyIDs: ["A"]))
        #expect(choice.clientRefused(tried: ["A"]) == .giveUp(tried: ["A"]))
        #expect(choice.clientRefused(tried: ["X"]) == .giveUp(tried: ["X"]))
        #expect(ClientKeyChoice(keyIDs: []) == nil)
    }
}
