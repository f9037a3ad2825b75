import AppleNotifications
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
