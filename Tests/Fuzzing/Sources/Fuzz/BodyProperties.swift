import AppleTokens

/// Only bodies with one of the signed tokens are accepted; the private key was deleted.
enum BodyProperties {
    static func check(_ input: [UInt8]) {
        let token: [UInt8]
        do {
            token = try NotificationBody.token(in: input)
        } catch {
            require(refusal(ofSpan: input) == error, "a span is refused like an array")
            require([.malformedBody, .bodyTooLarge, .appStoreNotification].contains(error), "refused as a body")
            return
        }
        require(refusal(ofSpan: input) == nil, "a span is accepted like an array")
        require(!token.isEmpty, "a token is not empty")
        let fixture = VerifierFixture.shared
        switch fixture.verifier.verify(token: token, keys: fixture.keys, now: VerifierFixture.now) {
        case .verified(let notification):
            require(VerifierFixture.genuine.contains(token), "nothing is verified but what was signed")
            require(notification.token == token, "a notification keeps its token")
        case .deadLetter(let letter):
            require(VerifierFixture.genuine.contains(token), "nothing is kept but what was signed")
            require(letter.token == token, "a dead letter keeps its token")
        case .refused(let rejection):
            require(!VerifierFixture.genuine.contains(token), "what was signed is not refused")
            require(rejection != .wrongIssuer && rejection != .notANotification, "claims are not looked at before")
        case .needsKey(let kid, _):
            require(kid != VerifierFixture.keyID, "a key that is there is found")
        }
    }

    private static func refusal(ofSpan input: [UInt8]) -> Rejection? {
        do throws(Rejection) {
            _ = try NotificationBody.token(in: input.span)
            return nil
        } catch {
            return error
        }
    }
}
