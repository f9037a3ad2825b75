import JOSE
import Testing

@Suite struct JSONWebKeySetTests {
    private func key(_ keyID: String, _ last: UInt8 = 1) throws -> String {
        let modulus = [0xC1] + [UInt8](repeating: 0x5A, count: 254) + [last]
        return try JSONWebKey(keyID: keyID, publicKey: RSAPublicKey(modulus: modulus, exponent: [1, 0, 1])).json
    }

    private func parse(_ keys: [String]) throws -> JSONWebKeySet {
        try JSONWebKeySet(parsing: Array("{\"keys\":[\(keys.joined(separator: ","))]}".utf8))
    }

    private func code(_ json: String) -> JOSEError.Code? {
        do throws(JOSEError) {
            _ = try JSONWebKeySet(parsing: Array(json.utf8))
            return nil
        } catch {
            return error.code
        }
    }

    @Test("Usable keys are kept in their order, the others passed over with a reason.")
    func mixed() throws {
        let set = try parse([
            key("a"), #"{"kty":"EC","kid":"b","crv":"P-256"}"#, "null", "7", "[]", key("c", 3),
            key("d").replacingFirst("\"sig\"", with: "\"enc\""), #"{"kid":"e\u0007"}"#,
        ])
        #expect(set.keys.map(\.keyID) == ["a", "c"])
        #expect(set.ignored.map(\.keyID) == ["b", nil, nil, nil, "d", nil])
        #expect(set.ignored[0].reason == "kty is not RSA")
        #expect(set.ignored[1].reason == "it is not a JSON object")
        #expect(set.ignored[4].reason == "use is not sig")
        #expect(set.key("c")?.publicKey.modulus.last == 3)
        #expect(set.key("b") == nil)
        #expect(set.key("A") == nil)
    }

    @Test("A kid that two different RSA keys share selects neither of them.")
    func duplicateKeyIDs() throws {
        let set = try parse([key("a"), key("b"), key("a", 3)])
        #expect(set.keys.map(\.keyID) == ["b"])
        #expect(set.ignored.map(\.keyID) == ["a", "a"])
        let threefold = try parse([key("a"), key("a", 3), key("a"), key("b")])
        #expect(threefold.keys.map(\.keyID) == ["b"])
        #expect(threefold.ignored.map(\.keyID) == ["a", "a", "a"])
    }

    @Test("A key that is listed twice is one key.")
    func identicalKeys() throws {
        let set = try parse([key("a"), key("b"), key("a"), key("a").replacingFirst("\"use\":\"sig\",", with: "")])
        #expect(set.keys.map(\.keyID) == ["a", "b"])
        #expect(set.ignored.isEmpty)
    }

    @Test(
        "What can't be used for verifying takes nothing from a usable key of the same kid, whichever comes first.",
        arguments: [("\"sig\"", "\"enc\""), ("RS256", "RS512"), ("RS256", "ES256"), ("\"n\":", "\"m\":")]
    )
    func unusableNamesake(part: String, other: String) throws {
        for last in [1, 3] as [UInt8] {
            let namesake = try key("a", last).replacingFirst(part, with: other)
            for keys in try [[key("a"), namesake], [namesake, key("a")]] {
                let set = try parse(keys)
                #expect(set.key("a")?.publicKey.modulus.last == 1)
                #expect(set.keys.count == 1)
                #expect(set.ignored.map(\.keyID) == ["a"])
            }
        }
    }

    @Test("A key of another type may share a kid: it is no candidate.")
    func sharedWithAnotherType() throws {
        let set = try parse([#"{"kty":"EC","kid":"a"}"#, key("a")])
        #expect(set.keys.map(\.keyID) == ["a"])
    }

    @Test(
        "What is no key set is refused.",
        arguments: [
            "{}", "[]", "null", #"{"keys":{}}"#, #"{"keys":null}"#, #"{"keys":"a"}"#, #"{"keys":[]}"#,
            #"{"keys":[{}]}"#,
            #"{"Keys":[]}"#, #"{"keys":[{"kty":"oct","kid":"a","k":"AQAB"}]}"#,
        ]
    )
    func unusable(json: String) {
        #expect(code(json) == .unusableKeySet)
    }

    @Test("What is not JSON, or has members twice, is refused as such.")
    func malformed() throws {
        for json in ["", "<html>", "{\"keys\":[", #"{"keys":[],"keys":[]}"#, "\u{FEFF}{\"keys\":[]}"] {
            #expect(code(json) == .malformedJSON)
        }
        let doubled = try key("a").replacingFirst("\"use\":\"sig\"", with: "\"use\":\"sig\",\"use\":\"enc\"")
        #expect(code("{\"keys\":[\(doubled)]}") == .malformedJSON)
    }

    @Test("A set has at most 64 keys.")
    func size() throws {
        #expect(try parse((0..<64).map { try key("k\($0)") }).keys.count == 64)
        #expect(throws: JOSEError.self) { try parse((0..<65).map { try key("k\($0)") }) }
    }

    @Test("A set of one's own is written as a key set that reads the same.")
    func spelling() throws {
        let set = try parse([key("a"), key("b", 3)])
        #expect(try JSONWebKeySet(parsing: Array(set.json.utf8)) == set)
        #expect(try JSONWebKeySet(set.keys) == set)
        #expect(throws: JOSEError.self) { try JSONWebKeySet([]) }
        #expect(throws: JOSEError.self) { try JSONWebKeySet(set.keys + set.keys) }
    }
}

extension String {
    /// The text with the first `part` replaced.
    func replacingFirst(_ part: String, with other: String) -> String {
        guard let range = firstRange(of: part) else { return self }
        return String(self[..<range.lowerBound]) + other + String(self[range.upperBound...])
    }
}
