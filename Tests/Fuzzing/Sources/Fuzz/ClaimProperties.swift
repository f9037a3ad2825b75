import AppleTokens
import Basics
import JOSE

/// Claims that Apple signed are verified, refused or stored, within the ranges that the database requires; the same claims
/// with an invalid signature are refused before they are read.
enum ClaimProperties {
    static func check(_ input: [UInt8]) {
        let fixture = VerifierFixture.shared
        let token = Array((VerifierFixture.header + "." + Base64URL.encode(input) + ".AA").utf8)
        let unsigned = fixture.verifier.verify(token: token, keys: fixture.keys, now: VerifierFixture.now)
        require(unsigned == .refused(.badSignature), "claims count for nothing without a signature")

        let authority = Authority.record(keyID: VerifierFixture.keyID)
        let decision = fixture.verifier.verify(
            token: token,
            authority: authority,
            receivedAt: VerifierFixture.now,
            now: VerifierFixture.now
        )
        let checks = fixture.verifier.explain(
            token: token,
            authority: authority,
            receivedAt: VerifierFixture.now,
            now: VerifierFixture.now
        )
        let isExplained = checks.allSatisfy(\.passed)
        switch decision {
        case .verified(let notification):
            require(isExplained, "an explanation agrees with the decision")
            check(notification, of: input)
        case .deadLetter(let letter):
            require(!isExplained, "an explanation agrees with the decision")
            check(letter)
        case .refused(let rejection):
            require(!isExplained, "an explanation agrees with the decision")
            require([.wrongIssuer, .notANotification].contains(rejection), "Apple's is refused for two reasons")
        case .needsKey:
            require(false, "what is on record needs no key")
        }
    }

    private static func check(_ notification: VerifiedNotification, of input: [UInt8]) {
        guard let claims = try? JSONValue(parsing: input) else {
            return require(false, "a verified notification is strict JSON")
        }
        require(claims["iss"] == .string(VerifierFixture.issuer), "the issuer is Apple")
        require(claims["aud"] == .string(notification.audience), "the audience is the claimed one")
        require(["com.example.app", "com.example.web"].contains(notification.audience), "the audience is one of ours")
        require(claims["jti"] == .string(notification.id.rawValue), "the id is the claimed one")
        require(claims["events"] != nil, "there is an event")
        require(1...256 ~= notification.id.rawValue.utf8.count, "an id has 1 to 256 bytes")
        require(1...256 ~= notification.event.subject.rawValue.utf8.count, "a subject has 1 to 256 bytes")
        require(!notification.event.subject.rawValue.utf8.contains(0), "a subject holds no NUL")
        require((notification.event.email?.utf8.count ?? 1) <= 320, "an address has at most 320 bytes")
        let latest = VerifierFixture.now + .seconds(300)
        require(notification.issuedAt <= latest, "it is not from the future")
        require(notification.event.time <= latest, "its event is not from the future")
        require(notification.expiresAt + .seconds(300) >= VerifierFixture.now, "it has not expired")
    }

    private static func check(_ letter: DeadLetter) {
        require(
            letter.reason != .storeRejected && letter.reason != .keysUnavailable,
            "a dead letter's reason is one of the claims"
        )
        for text in [letter.notificationID, letter.audience, letter.subject, letter.eventType] {
            require((text?.utf8.count ?? 0) <= 256, "the texts of a dead letter have at most 256 bytes")
            require(text?.utf8.contains(0) != true, "the texts of a dead letter hold no NUL")
        }
        require(letter.verifiedKeyID == VerifierFixture.keyID, "a dead letter names the key that verified it")
    }
}
