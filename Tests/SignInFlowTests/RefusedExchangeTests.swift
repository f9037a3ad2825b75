import AppleTokens
import Basics
import JOSE
import SignIn
import Telemetry
import Testing

@testable import SignInFlow

@Suite("Exchanges that Apple refuses", .timeLimit(.minutes(5)))
struct RefusedExchangeTests {
    @Test("After invalid_client the second key of the team is tried, and stays in use.")
    func secondKey() async throws {
        try await FlowFixture.with(FlowFixture.Rules(exchange: .required)) { flow in
            flow.apple.refuse(keys: ["KEYONE0001"])
            #expect(try await flow.signIn(flow.request(flow.apple.signIn())).refreshToken == .stored)
            #expect(flow.apple.requests == 2)
            let second = try flow.apple.signIn(nonce: "nonce-two")
            _ = try await flow.signIn(flow.request(second, nonce: "nonce-two"))
            #expect(flow.apple.requests == 3)
        }
    }

    @Test("If every key is refused, the log names the keys and the clock, and preferred mode goes on without a token.")
    func refusedClient() async throws {
        try await FlowFixture.with(FlowFixture.Rules(exchange: .required)) { flow in
            flow.apple.refuse(keys: ["KEYONE0001", "KEYTWO0002"])
            flow.apple.setClock(ahead: .seconds(-90))
            let request = try flow.request(flow.apple.signIn())
            #expect(await flow.refusal(request) == .appleRefusedClient)
            #expect(flow.log.text.contains("clock is wrong") && flow.log.text.contains("KEYONE0001, KEYTWO0002"))
            #expect(flow.log.count("Apple refuses the client", "\"secret_lifetime\":\"300 s\"") == 1)
            try flow.replace(FlowFixture.Rules())
            let answer = try await flow.signIn(request)
            #expect(answer.refreshToken == .refused && answer.refreshTokenError == "invalid_client")
        }
    }

    @Test("Where Apple refuses clients and codes in turn, each is logged once in 30 seconds.")
    func refusalsInTurn() async throws {
        try await FlowFixture.with(FlowFixture.Rules(exchange: .required)) { flow in
            func refusal(_ nonce: String) async throws -> Problem.Reason? {
                let device = try flow.apple.signIn(nonce: nonce)
                return try await flow.refusal(flow.request(device, nonce: nonce))
            }
            for number in 0..<2 {
                flow.apple.refuse(keys: ["KEYONE0001", "KEYTWO0002"])
                #expect(try await refusal("nonce-client-\(number)") == .appleRefusedClient)
                flow.apple.refuse(keys: [])
                try flow.apple.behave(#"{"status":400,"body":"{\"error\":\"invalid_grant\"}"}"#)
                #expect(try await refusal("nonce-code-\(number)") == .codeRejected)
            }
            #expect(flow.log.count("Apple refuses the client") == 1)
            #expect(flow.log.count("Apple refuses a code") == 1)
        }
    }

    @Test("The log names the cause for which Apple refuses a code.")
    func causes() async throws {
        try await FlowFixture.with(FlowFixture.Rules(exchange: .required)) { flow in
            let causes = [
                ("The code has already been used.", "the code was used before"),
                ("The code has expired or has been revoked.", "the code has expired or was revoked"),
                ("client_id mismatch. The code was not issued to com.example.one", "issued to another client id"),
                ("redirect_uri mismatch. The code was not issued to none", "issued with another redirect_uri"),
                ("Another text.", "no reason that siwad knows"),
            ]
            for (number, (description, cause)) in causes.enumerated() {
                let body = "{\"error\":\"invalid_grant\",\"error_description\":\"\(description)\"}"
                try flow.apple.behave("{\"status\":400,\"body\":\(JSONValue.quoted(body))}")
                let nonce = "nonce-of-\(number)"
                let device = try flow.apple.signIn(nonce: nonce)
                #expect(try await flow.refusal(flow.request(device, nonce: nonce)) == .codeRejected)
                #expect(flow.log.count("Apple refuses a code", cause) == 1, "\(cause)")
            }
        }
    }

    @Test("Where Apple gives no reason, the answer and the log name a missing redirect_uri, which may be the cause.")
    func missingRedirectURI() async throws {
        try await FlowFixture.with(FlowFixture.Rules(exchange: .required)) { flow in
            let hint = "a code of the web needs the one of its authorization request"
            let member = #","redirect_uri":"https://example.com/back""#
            let request = try flow.request(flow.apple.signIn(members: member))
            let problem = await #expect(throws: Problem.self) { try await flow.signIn(request) }
            #expect(problem?.reason == .codeRejected && problem?.detail.hasSuffix("\(hint).") == true)
            #expect(flow.log.count("Apple refuses a code", hint) == 1)

            try flow.apple.behave(#"{"status":400,"body":"{\"error\":\"invalid_grant\"}"}"#)
            let device = try flow.apple.signIn(nonce: "nonce-two", members: member)
            let complete = try flow.request(device, nonce: "nonce-two", members: member)
            let other = await #expect(throws: Problem.self) { try await flow.signIn(complete) }
            #expect(other?.reason == .codeRejected && other?.detail.contains(hint) == false)
            #expect(flow.log.count("Apple refuses a code") == 2 && flow.log.count(hint) == 1)
        }
    }

    @Test("Clients that Apple refuses in turn are each logged once in 30 seconds.")
    func clientsInTurn() async throws {
        try await FlowFixture.with(FlowFixture.Rules(exchange: .required)) { flow in
            flow.apple.refuse(keys: ["KEYONE0001", "KEYTWO0002"])
            for number in 0..<6 {
                let client = number.isMultiple(of: 2) ? "com.example.one" : "com.example.two"
                let device = try flow.apple.signIn(client: client, nonce: "nonce-of-\(number)")
                let request = try flow.request(device, client: client, nonce: "nonce-of-\(number)")
                #expect(await flow.refusal(request) == .appleRefusedClient)
            }
            #expect(flow.log.count("Apple refuses the client") == 2)
        }
    }
}
