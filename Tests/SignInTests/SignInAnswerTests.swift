import AppleTokens
import Basics
import JOSE
import Testing

@testable import SignIn

@Suite("Answers to a sign-in")
struct SignInAnswerTests {
    private static let account = SignInAnswer.Account(
        id: 42,
        team: TeamID("A1B2C3D4E5"),
        subject: Subject("000768.6166.1521"),
        app: AppID("com.example.app"),
        client: ClientID("com.example.app"),
        state: "authorized"
    )
    private static let time = WallTime(seconds: 1_795_456_927)

    @Test("An answer with everything has every member, identifiers as text.")
    func whole() throws {
        let answer = SignInAnswer(
            signInID: 8_123,
            isRepeated: false,
            isNewAccount: true,
            signedInAt: Self.time,
            account: Self.account,
            email: .init(address: "k7x2m9@privaterelay.appleid.com", isPrivate: true, isDeliverable: true),
            name: .init(given: "Maria", family: nil, capturedAt: Self.time),
            realUserStatus: "likely-real",
            refreshToken: .refused,
            refreshTokenError: "invalid_grant",
            session: .init(id: "a3f1c5d2", isLive: true, createdAt: Self.time, expiresAt: nil)
        )
        let at = Self.time.iso8601
        #expect(
            answer.json
                == "{\"sign_in_id\":\"8123\",\"repeated\":false,\"new_account\":true,\"signed_in_at\":\"\(at)\","
                + "\"account\":{\"id\":\"42\",\"team_id\":\"A1B2C3D4E5\",\"sub\":\"000768.6166.1521\","
                + "\"app_id\":\"com.example.app\",\"client_id\":\"com.example.app\",\"state\":\"authorized\"},"
                + "\"email\":{\"address\":\"k7x2m9@privaterelay.appleid.com\",\"verified\":true,\"private\":true,"
                + "\"deliverable\":true},\"name\":{\"given\":\"Maria\",\"family\":null,\"captured_at\":\"\(at)\"},"
                + "\"real_user_status\":\"likely-real\",\"org_id\":null,\"transfer_sub\":null,\"linked_user_id\":null,"
                + "\"linkable_email\":false,\"refresh_token\":\"refused\",\"refresh_token_error\":\"invalid_grant\","
                + "\"session\":{\"id\":\"a3f1c5d2\",\"live\":true,\"created_at\":\"\(at)\",\"expires_at\":null}}"
        )
    }

    @Test("An answer with the least has the same members.")
    func least() throws {
        let answer = SignInAnswer(
            signInID: 1,
            isRepeated: true,
            isNewAccount: false,
            signedInAt: Self.time,
            account: Self.account,
            refreshToken: .none
        )
        let parsed = try JSONValue(parsing: Array(answer.json.utf8))
        #expect(parsed.members?.count == 15)
        for name in ["email", "name", "real_user_status", "org_id", "transfer_sub", "linked_user_id", "session"] {
            #expect(parsed[name] == .null)
        }
        #expect(parsed["refresh_token"]?.string == "none")
    }

    @Test("The answers about nonces and sessions have their members.")
    func others() throws {
        let nonce = IssuedNonce(nonce: "n", sha256: "h", expiresIn: .seconds(600))
        #expect(nonce.json == "{\"nonce\":\"n\",\"sha256\":\"h\",\"expires_in\":600}")
        let session = SessionAnswer(isLive: true, endedAt: nil, endReason: nil)
        #expect(session.json == "{\"live\":true,\"ended_at\":null,\"end_reason\":null}")
        #expect(try IssuedNonce.client(parsing: Array("{\"client_id\":\"a.b\"}".utf8)) == ClientID("a.b"))
        #expect(throws: Problem.self) { try IssuedNonce.client(parsing: Array("{}".utf8)) }
    }
}

@Suite("Problems")
struct ProblemTests {
    @Test("Each reason has a status, a title without a full stop, and JSON.", arguments: Problem.Reason.allCases)
    func reasons(reason: Problem.Reason) throws {
        let problem = Problem(reason, "A “detail”.")
        let json = try JSONValue(parsing: Array(problem.json.utf8))
        #expect(json["type"]?.string == "urn:siwad:problem:\(reason.rawValue)")
        #expect(json["status"]?.integer == Int64(reason.status))
        #expect(json["action"]?.string == reason.action.rawValue)
        #expect(json["detail"]?.string == "A “detail”.")
        #expect(400...503 ~= reason.status && !reason.title.hasSuffix("."))
        #expect((problem.retryAfter != nil) == (reason.status == 503))
    }

    @Test("Every refusal of an identity token has a reason of the same name but one, which only Apple's answers cause.")
    func refusals() {
        let missing = IdentityRefusal.Reason.allCases.filter { Problem.Reason(rawValue: $0.rawValue) == nil }
        #expect(missing == [.accessTokenMismatch])
    }
}

@Suite("Callers of the application endpoint")
struct CallerDirectoryTests {
    private static func line(_ name: String, _ token: String, _ clients: String = "") -> String {
        let digest = SHA256.digest(Array(token.utf8).span).map { ($0 < 16 ? "0" : "") + String($0, radix: 16) }.joined()
        return "\(name) \(digest) \(clients)"
    }

    @Test("A caller is found by its token, with its client ids.")
    func found() throws {
        let text = Self.line("shop", "one") + "\n\n" + Self.line("web", "two", "com.example.web com.example.two") + "\n"
        let callers = try CallerDirectory(parsing: text)
        #expect(callers.names == ["shop", "web"])
        let shop = try #require(callers.caller(bearer: Array("one".utf8)))
        #expect(shop.name == "shop" && shop.mayActFor(ClientID("com.example.web")))
        let web = try #require(callers.caller(bearer: Array("two".utf8)))
        #expect(web.mayActFor(ClientID("com.example.two")) && !web.mayActFor(ClientID("com.example.app")))
        #expect(callers.caller(bearer: Array("three".utf8)) == nil && callers.caller(bearer: []) == nil)
    }

    /// The shortest time that each search took, of several that alternate. Other work on the machine only lengthens runs.
    private func shortestTimes(_ callers: CallerDirectory, _ tokens: [String]) -> [Duration] {
        let tokens = tokens.map { Array($0.utf8) }
        let clock = ContinuousClock()
        var shortest = [Duration](repeating: .seconds(60), count: tokens.count)
        for _ in 0..<20 {
            for (index, token) in tokens.enumerated() {
                var found: Caller?
                shortest[index] = min(shortest[index], clock.measure { found = callers.caller(bearer: token) })
                #expect((found == nil) == (index > 1))
            }
        }
        return shortest
    }

    // A comparison that ends at the first difference would take a hundred times longer for a token that differs at its end
    // than for one that differs at its beginning; a search that ends at the first match as much longer for the last line.
    @Test("The time of a search depends neither on how a token begins nor on the line that has it.")
    func constantTime() throws {
        let others = (0..<300).map { Self.line("other", "token \($0)") }
        let long = String(repeating: "t", count: 1 << 20)
        for (first, last) in [("one", "two"), (long + "1", long + "2")] {
            let lines = [Self.line("first", first)] + others + [Self.line("last", last)]
            let callers = try CallerDirectory(parsing: lines.joined(separator: "\n"))
            let times = shortestTimes(callers, [first, last, first.dropLast() + "3", "x" + first.dropFirst()])
            let (least, most) = (times.min() ?? .zero, times.max() ?? .zero)
            #expect(least * 5 > most, "\(times)")
        }
    }

    @Test("A list in a configuration file has commas, and a name may have two tokens.")
    func commas() throws {
        let callers = try CallerDirectory(parsing: Self.line("shop", "one") + "," + Self.line("shop", "two"))
        #expect(callers.caller(bearer: Array("one".utf8)) == callers.caller(bearer: Array("two".utf8)))
    }

    @Test(
        "A malformed line is refused with its number and without the digest.",
        arguments: [
            ("", 0), ("shop", 1), ("shop 12ab", 1), ("sh/op " + String(repeating: "a", count: 64), 1),
            ("\nshop " + String(repeating: "a", count: 63) + "g", 2),
            ("shop " + String(repeating: "a", count: 64) + "g", 1),
        ]
    )
    func malformed(text: String, line: Int) {
        let error = #expect(throws: CallerDirectoryError.self) { try CallerDirectory(parsing: text) }
        #expect(error?.line == line)
        #expect(error?.description.contains("aaaa") == false && error?.description.contains("SHA256HEX") == true)
    }

    @Test("The same token twice is refused.")
    func repeated() {
        let text = Self.line("shop", "one") + "\n" + Self.line("web", "one")
        #expect(throws: CallerDirectoryError.self) { try CallerDirectory(parsing: text) }
    }
}
