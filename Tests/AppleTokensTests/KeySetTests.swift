import AppleTokens
import AppleSimulator
import Basics
import JOSE
import Testing

@Suite struct KeySetTests {
    @Test("Of several keys of the same name the first counts.")
    func duplicates() throws {
        let fixture = try VerifierFixture.set()
        let first = try JSONWebKey(keyID: "k", publicKey: fixture.apple.key.publicKey)
        let second = try JSONWebKey(keyID: "k", publicKey: fixture.stranger.key.publicKey)
        let set = KeySet([first, second], fetchedAt: nil)
        #expect(set.keys == [first])
        #expect(set.contains(kid: "k") && !set.contains(kid: "K") && !set.contains(kid: ""))
        #expect(!set.isEmpty && KeySet.none.isEmpty)
    }

    @Test("An unusable key of the set cannot verify and is not absent.")
    func unusable() throws {
        let fixture = try VerifierFixture.set()
        let usable = try #require(fixture.apple.keys.first).json
        let weak = #"{"kty":"RSA","kid":"weak","n":"AQAB","e":"AQAB"}"#
        let namesake = usable.replacing("\"sig\"", with: "\"enc\"")
        let json = #"{"keys":[\#(namesake),\#(usable),\#(weak),{"kty":"RSA"}]}"#
        let set = KeySet(try JSONWebKeySet(parsing: Array(json.utf8)), fetchedAt: nil)
        #expect(set.contains(kid: fixture.apple.keyID) && !set.lacks(kid: fixture.apple.keyID))
        #expect(!set.contains(kid: "weak") && !set.lacks(kid: "weak"))
        #expect(!set.contains(kid: "other") && set.lacks(kid: "other"))
        #expect(set.unusable == ["weak"])
        let token = try fixture.apple.token(claims: "{}", header: #"{"kid":"weak","alg":"RS256"}"#)
        #expect(fixture.explanation(of: token, keys: set).last?.detail.contains("cannot be used") == true)
    }

    @Test("Every set has a number of its own, later ones higher.")
    func versions() throws {
        let fixture = try VerifierFixture.set()
        let first = KeySet(fixture.apple.keys, fetchedAt: nil)
        let second = KeySet(fixture.apple.keys, fetchedAt: nil)
        let copy = first
        #expect(first.version < second.version)
        #expect(copy.version == first.version)
    }

    @Test("A set is made of what Apple's endpoint returns.")
    func parsed() throws {
        let fixture = try VerifierFixture.set()
        let parsed = try JSONWebKeySet(parsing: Array(fixture.apple.keySetJSON.utf8))
        let set = KeySet(parsed, fetchedAt: WallTime(seconds: 7))
        #expect(set.keys == fixture.apple.keys)
        #expect(set.fetchedAt == WallTime(seconds: 7))
    }
}
