import AppleTokens
import AppleSimulator
import JOSE
import Testing

@Suite struct KeySetTests {
    @Test("Of several keys of the same name the first counts.")
    func duplicates() throws {
        let stage = try Stage.set()
        let first = try JSONWebKey(keyID: "k", publicKey: stage.apple.key.publicKey)
        let second = try JSONWebKey(keyID: "k", publicKey: stage.stranger.key.publicKey)
        let set = KeySet([first, second], fetchedAt: nil)
        #expect(set.keys == [first])
        #expect(set.key("k") == first)
        #expect(set.contains(kid: "k") && !set.contains(kid: "K") && set.key("") == nil)
        #expect(!set.isEmpty && KeySet.none.isEmpty)
    }

    @Test("A key that is there and can't be used is neither there to verify with nor lacking.")
    func unusable() throws {
        let stage = try Stage.set()
        let usable = try #require(stage.apple.keys.first).json
        let weak = #"{"kty":"RSA","kid":"weak","n":"AQAB","e":"AQAB"}"#
        let namesake = usable.replacing("\"sig\"", with: "\"enc\"")
        let json = #"{"keys":[\#(namesake),\#(usable),\#(weak),{"kty":"RSA"}]}"#
        let set = KeySet(try JSONWebKeySet(parsing: Array(json.utf8)), fetchedAt: nil)
        #expect(set.contains(kid: stage.apple.keyID) && !set.lacks(kid: stage.apple.keyID))
        #expect(!set.contains(kid: "weak") && !set.lacks(kid: "weak"))
        #expect(!set.contains(kid: "other") && set.lacks(kid: "other"))
        #expect(set.unusable == ["weak"])
        let token = try stage.apple.token(claims: "{}", header: #"{"kid":"weak","alg":"RS256"}"#)
        #expect(stage.explanation(of: token, keys: set).last?.detail.contains("can't be used") == true)
    }

    @Test("Every set has a number of its own, later ones higher.")
    func versions() throws {
        let stage = try Stage.set()
        let first = KeySet(stage.apple.keys, fetchedAt: nil)
        let second = KeySet(stage.apple.keys, fetchedAt: nil)
        let copy = first
        #expect(first.version < second.version)
        #expect(copy.version == first.version)
    }

    @Test("A set is made of what Apple's endpoint returns.")
    func parsed() throws {
        let stage = try Stage.set()
        let parsed = try JSONWebKeySet(parsing: Array(stage.apple.keySetJSON.utf8))
        let set = KeySet(parsed, fetchedAt: WallTime(seconds: 7))
        #expect(set.keys == stage.apple.keys)
        #expect(set.fetchedAt == WallTime(seconds: 7))
    }
}
