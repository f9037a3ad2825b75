import AppleTokens
import Testing

@Suite struct VocabularyTests {
    @Test("Both spellings of a deletion are one kind of event, and unknown types are none.")
    func kinds() {
        #expect(AccountEvent.Kind(appleType: "account-deleted") == .accountDeleted)
        #expect(AccountEvent.Kind(appleType: "account-delete") == .accountDeleted)
        #expect(AccountEvent.Kind(appleType: "consent-revoked") == .consentRevoked)
        #expect(AccountEvent.Kind(appleType: "email-enabled") == .emailEnabled)
        #expect(AccountEvent.Kind(appleType: "email-disabled") == .emailDisabled)
        for unknown in ["", "account-deletes", "Account-Deleted", "email", "accountDeleted"] {
            #expect(AccountEvent.Kind(appleType: unknown) == nil)
        }
    }

    @Test("Refusals have the names and statuses of the contract.")
    func rejections() {
        let statuses = [
            "malformed-body": 400, "malformed-token": 400, "unsupported-algorithm": 400, "not-a-notification": 400,
            "app-store-notification": 400, "bad-signature": 401, "unknown-key": 401, "wrong-issuer": 401,
            "body-too-large": 413,
        ]
        #expect(Dictionary(uniqueKeysWithValues: Rejection.allCases.map { ($0.rawValue, $0.status) }) == statuses)
    }

    @Test("Every refusal explains itself in a line.", arguments: Rejection.allCases)
    func texts(rejection: Rejection) {
        #expect(!rejection.title.isEmpty && !rejection.title.contains("\n"))
        #expect(rejection.detail.hasSuffix(".") && !rejection.detail.contains("\n"))
    }

    @Test("Dead letters have the reasons of the contract.")
    func reasons() {
        #expect(
            Set(DeadLetterReason.allCases.map(\.rawValue)) == [
                "unknown-audience", "unknown-event-type", "malformed-claims", "expired", "not-yet-valid",
                "store-rejected", "keys-unavailable",
            ]
        )
    }

    @Test("The texts of a dead letter are cut between characters and lose their NULs.")
    func cutting() {
        let long = String(repeating: "ä", count: 200)
        let letter = DeadLetter(
            reason: .malformedClaims,
            detail: "",
            notificationID: "a\0b",
            audience: String(repeating: "x", count: 256),
            subject: "x" + long,
            eventType: long,
            token: []
        )
        #expect(letter.notificationID == "ab")
        #expect(letter.audience == String(repeating: "x", count: 256))
        #expect(letter.subject == "x" + String(repeating: "ä", count: 127))
        #expect(letter.eventType == String(repeating: "ä", count: 128))
    }

    @Test("Of a token whose key is unavailable nothing is believed.")
    func keysUnavailable() {
        let letter = DeadLetter.keysUnavailable(token: [1, 2, 3])
        #expect(letter.reason == .keysUnavailable)
        #expect(letter.token == [1, 2, 3])
        #expect(letter.verifiedKeyID == nil && letter.notificationID == nil && letter.subject == nil)
        #expect(letter.audience == nil && letter.eventType == nil)
    }

    @Test("A negative leeway counts as none.")
    func leeway() throws {
        let audiences = try AudienceMap(parsing: "A1B2C3D4E5/com.example.app")
        #expect(NotificationPolicy(audiences: audiences, leeway: .seconds(-1)).leeway == .zero)
    }
}
