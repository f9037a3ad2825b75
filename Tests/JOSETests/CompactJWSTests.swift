import JOSE
import Testing

/// What a token may look like. Every token here that can be signed at all carries a genuine signature.
@Suite struct CompactJWSTests {
    @Test("A token is taken apart; unknown header members and typ are tolerated.")
    func parses() throws {
        let header = #"{ "typ":"JWT", "cty":1, "extra":{"a":[1]}, "alg":"RS256", "kid":"fh6Bs8C" }"#
        let token = try CompactJWS(parsing: Fixtures.token(header: header, payload: "any bytes"))
        #expect(token.keyID == "fh6Bs8C")
        #expect(token.payload == Array("any bytes".utf8))
        #expect(token.signature.count == 256)
        #expect(!token.header.carriesCertificates)
        #expect(token.signingInputRange.lowerBound == 0)
        #expect(token.bytes[token.signingInputRange.upperBound] == UInt8(ascii: "."))
    }

    @Test("A token without kid is taken; nothing selects a key for it.")
    func withoutKeyID() throws {
        #expect(try CompactJWS(parsing: Fixtures.token(header: #"{"alg":"RS256"}"#)).keyID == nil)
    }

    @Test("Anything but three parts is refused: JWE has five, the JSON serialisations none.")
    func parts() throws {
        let token = try Fixtures.token()
        let dot = [UInt8(ascii: ".")]
        let parts = Fixtures.parts(token)
        let json = #"{"payload":"e30","signatures":[{"protected":"e30","signature":"e30"}]}"#
        let flattened = #"{"payload":"e30","protected":"e30","signature":"e30"}"#
        let jwe = Array("eyJhbGciOiJSU0EtT0FFUCIsImVuYyI6IkExMjhHQ00ifQ.e30.e30.e30.e30".utf8)
        let malformed: [[UInt8]] = [
            [], dot, dot + dot, dot + dot + dot, parts[0], parts[0] + dot + parts[1], token + dot,
            token + dot + parts[2], dot + token,
            jwe, token + dot + parts[1] + dot + parts[2], Array(json.utf8), Array(flattened.utf8),
            parts[0] + dot + dot + parts[2],
        ]
        for (index, token) in malformed.enumerated() where index != 13 {
            #expect(Fixtures.refusal(token) == .malformedToken, "\(index)")
        }
        // An empty payload is a JWS like any other; what it says is for others to judge.
        #expect(Fixtures.refusal(malformed[13]) == nil)
    }

    @Test("A token without a signature is refused, also when it names RS256.")
    func emptySignature() throws {
        let parts = Fixtures.parts(try Fixtures.token())
        #expect(Fixtures.refusal(parts[0] + [UInt8(ascii: ".")] + parts[1] + [UInt8(ascii: ".")]) == .malformedToken)
    }

    @Test("Padding, whitespace, line ends and NUL are refused in every part and around the token.")
    func foreignBytes() throws {
        let token = try Fixtures.token()
        let dots = token.indices.filter { token[$0] == UInt8(ascii: ".") }
        for byte in Array("= \n\r\t\0+/%\"".utf8) + [0x80, 0xC3, 0xFF] {
            for place in [0, 5, dots[0], dots[0] + 1, dots[1], dots[1] + 1, token.count - 1, token.count] {
                var changed = token
                changed.insert(byte, at: place)
                #expect(Fixtures.refusal(changed) == .malformedToken)
            }
        }
        #expect(Fixtures.refusal(token + Array("\r\n".utf8)) == .malformedToken)
        #expect(Fixtures.refusal(token + Array("==".utf8)) == .malformedToken)
        #expect(Fixtures.refusal([0xEF, 0xBB, 0xBF] + token) == .malformedToken)
    }

    @Test("Of every spelling of the last characters of a signature only the canonical one is taken.")
    func nonCanonicalSignature() throws {
        let alphabet = Array("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_".utf8)
        let token = try Fixtures.token()
        let verifier = try RSAVerifier(Fixtures.key().publicKey)
        // 256 bytes end in two characters, and the last one has four unused bits.
        var taken = 0
        for character in alphabet {
            let spelled = token.dropLast() + [character]
            if Fixtures.isVerified(Array(spelled), by: verifier) { taken += 1 }
        }
        #expect(taken == 1)
        let value = try #require(token.last.flatMap { alphabet.firstIndex(of: $0) })
        for unused in 1..<16 {
            let spelled = token.dropLast() + [alphabet[value | unused]]
            #expect(Fixtures.refusal(Array(spelled)) == .malformedToken)
        }
    }

    @Test("A header of more than 1 KiB is refused, one of 1 KiB is read.")
    func oversizedHeader() throws {
        func header(_ length: Int) -> String {
            let frame = #"{"alg":"RS256","kid":"a","x":""}"#
            return frame.dropLast(2) + String(repeating: "y", count: length - frame.utf8.count) + "\"}"
        }
        #expect(Fixtures.refusal(try Fixtures.token(header: header(1024))) == nil)
        #expect(Fixtures.refusal(try Fixtures.token(header: header(1025))) == .malformedToken)
        #expect(Fixtures.refusal(try Fixtures.token(header: header(65536))) == .malformedToken)
    }

    @Test(
        "A header that is not strict JSON is refused.",
        arguments: [
            "", "null", "[]", "\"RS256\"", "{", #"{"alg":"RS256","kid":"a"}x"#, #"{"alg":"RS256","kid":"a",}"#,
            #"{"alg":"RS256","kid":"a","kid":"b"}"#, #"{"alg":"RS256","kid":"a","k\u0069d":"b"}"#, #"{'alg':'RS256'}"#,
            "\u{FEFF}{\"alg\":\"RS256\"}", "{\"alg\":\"RS256\",\"x\":\"\u{0}\"}", #"{"alg":"RS256","x":"\u0000"}"#,
            #"{"alg":"RS256","x":"\ud800"}"#, #"{"alg":"RS256","x":{"y":1,"y":2}}"#, #"{"alg":"RS256","x":01}"#,
            #"{"alg":"RS256","x":[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]}"#,
        ]
    )
    func malformedHeader(header: String) throws {
        #expect(Fixtures.refusal(try Fixtures.token(header: header)) == .malformedToken)
    }

    @Test("A header that is not UTF-8 is refused.")
    func headerEncoding() throws {
        for bytes: [UInt8] in [[0xC0, 0xAF], [0xED, 0xA0, 0x80], [0xF4, 0x90, 0x80, 0x80], [0xFF]] {
            let header = Array(#"{"alg":"RS256","x":""#.utf8) + bytes + Array("\"}".utf8)
            #expect(Fixtures.refusal(try Fixtures.token(header: header, payload: [])) == .malformedToken)
        }
    }

    @Test(
        "A kid that is no string of 1 to 256 visible ASCII characters is refused, so none reaches a log, a path or a query.",
        arguments: [
            "1", "null", "true", "[]", "{}", "[\"a\"]", "\"\"", "\" \"", "\"a b\"", "\"a\\nb\"", "\"\\u001b[31m\"",
            "\"\\u212a\"", "\"é\"",
            "\"\\u202e\"", "\"\\u0000\"", "\"\(String(repeating: "a", count: 257))\"",
        ]
    )
    func keyIDForm(kid: String) throws {
        #expect(Fixtures.refusal(try Fixtures.token(header: "{\"alg\":\"RS256\",\"kid\":\(kid)}")) == .malformedToken)
    }

    @Test(
        "A kid that looks like a path, a query or a command is a name like any other.",
        arguments: [
            "../../../dev/null", "';DROP/**/TABLE--", "|/bin/sh", "http://evil.example/k", "%00", "${jndi:ldap://x}",
            "__proto__",
        ]
    )
    func keyIDInjection(kid: String) throws {
        let header = "{\"alg\":\"RS256\",\"kid\":\(JSONValue.quoted(kid))}"
        #expect(try CompactJWS(parsing: Fixtures.token(header: header)).keyID == kid)
    }
}
