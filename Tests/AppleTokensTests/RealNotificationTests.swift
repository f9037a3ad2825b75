import AppleTokens
import Basics
import FoundationEssentials
import JOSE
import Testing

/// Tokens that Apple signed, and its key sets of the time. They are not part of the project.
enum Vectors {
    static let folder = URL(filePath: #filePath)
        .deletingLastPathComponent().deletingLastPathComponent().deletingLastPathComponent().deletingLastPathComponent()
        .appending(path: "shared/vectors")

    static var areThere: Bool { FileManager.default.fileExists(atPath: folder.path) }

    static func bytes(_ name: String) throws -> [UInt8] {
        var bytes = Array(try Data(contentsOf: folder.appending(path: name)))
        while bytes.last == UInt8(ascii: "\n") { bytes.removeLast() }
        return bytes
    }

    static func keys() throws -> KeySet {
        KeySet(try JSONWebKeySet(parsing: bytes("apple-keys-2022-07.json")), fetchedAt: nil)
    }
}

@Suite(.enabled(if: Vectors.areThere, "the folder ../shared/vectors with real notifications is missing"))
struct RealNotificationTests {
    /// A real notification and what it says.
    struct Vector: Sendable, CustomTestStringConvertible {
        let file: String
        let app: String
        let issuedAt: Int64
        let id: String
        let subject: String
        let eventTime: Int64

        var testDescription: String { file }
    }

    static let vectors = [
        Vector(
            file: "notification-2022-07.jws",
            app: "jp.yauth.signin.app",
            issuedAt: 1_657_617_092,
            id: "S25cB0PbHs6y97gYYmgydQ",
            subject: "000768.6166f031167141e695698239959f591a.1521",
            eventTime: 1_657_617_063_012
        ),
        Vector(
            file: "notification-2022-12.jws",
            app: "com.fullqueuedeveloper.FQAuthSampleiOSApp",
            issuedAt: 1_670_016_131,
            id: "0PqlxYF011e15IMQOxEsFQ",
            subject: "002024.1951936c61fa47debb2b076e6896ccc1.1949",
            eventTime: 1_670_016_125_295
        ),
    ]

    private func verifier(for vector: Vector) throws -> NotificationVerifier {
        let audiences = try AudienceMap(parsing: "A1B2C3D4E5/\(vector.app)")
        return NotificationVerifier(policy: NotificationPolicy(audiences: audiences))
    }

    @Test("A real notification is verified at its own time, with everything that it says.", arguments: vectors)
    func verified(vector: Vector) throws {
        let token = try Vectors.bytes(vector.file)
        let verifier = try verifier(for: vector)
        let now = WallTime(seconds: vector.issuedAt + 3)
        let expected = VerifiedNotification(
            id: NotificationID(vector.id),
            issuedAt: WallTime(seconds: vector.issuedAt),
            expiresAt: WallTime(seconds: vector.issuedAt + 86_400),
            team: TeamID("A1B2C3D4E5"),
            app: AppID(vector.app),
            audience: vector.app,
            event: AccountEvent(
                kind: .consentRevoked,
                rawType: "consent-revoked",
                subject: Subject(vector.subject),
                time: WallTime(milliseconds: vector.eventTime)
            ),
            keyID: "fh6Bs8C",
            token: token
        )
        #expect(try verifier.verify(token: token, keys: Vectors.keys(), now: now) == .verified(expected))
    }

    @Test("A real notification is found in the body in which Apple sends it.", arguments: vectors)
    func wrapped(vector: Vector) throws {
        let token = try Vectors.bytes(vector.file)
        let body = Array("{\"payload\":\"".utf8) + token + Array("\"}".utf8)
        #expect(try NotificationBody.token(in: body) == token)
    }

    @Test("A real notification with one bit changed anywhere is not verified.", arguments: vectors)
    func changed(vector: Vector) throws {
        let token = try Vectors.bytes(vector.file)
        let verifier = try verifier(for: vector)
        let keys = try Vectors.keys()
        let now = WallTime(seconds: vector.issuedAt + 3)
        for index in token.indices {
            for bit in 0..<8 {
                var changed = token
                changed[index] ^= 1 << bit
                switch verifier.verify(token: changed, keys: keys, now: now) {
                case .refused, .needsKey: continue
                case .verified, .deadLetter:
                    Issue.record("believed with bit \(bit) of byte \(index) changed")
                    return
                }
            }
        }
    }

    @Test("A real notification cut short anywhere or made longer is not verified.", arguments: vectors)
    func cut(vector: Vector) throws {
        let token = try Vectors.bytes(vector.file)
        let verifier = try verifier(for: vector)
        let keys = try Vectors.keys()
        let now = WallTime(seconds: vector.issuedAt + 3)
        for length in 0..<token.count {
            let decision = verifier.verify(token: Array(token.prefix(length)), keys: keys, now: now)
            #expect(decision.notification == nil && decision.deadLetter == nil)
        }
        for extra in ["A", "=", ".", "\n", "AA", "AAAA"] {
            let decision = verifier.verify(token: token + Array(extra.utf8), keys: keys, now: now)
            #expect(decision.notification == nil && decision.deadLetter == nil)
        }
    }

    @Test("A real notification is expired a day and the leeway after it was issued.", arguments: vectors)
    func expired(vector: Vector) throws {
        let token = try Vectors.bytes(vector.file)
        let verifier = try verifier(for: vector)
        let last = WallTime(seconds: vector.issuedAt + 86_400 + 300)
        #expect(try verifier.verify(token: token, keys: Vectors.keys(), now: last).summary == "verified")
        let later = last + .microseconds(1)
        #expect(try verifier.verify(token: token, keys: Vectors.keys(), now: later).summary == "expired")
    }
}
