import Basics
import JOSE
import Testing
import Webhooks

@Suite("Webhooks")
struct WebhookTests {
    private let time = WallTime(seconds: 1_790_000_000)
    private let body = Array(#"{"type":"siwa.consent.revoked"}"#.utf8)

    private func code(_ body: () throws -> Void) -> WebhookError.Code? {
        do {
            try body()
            return nil
        } catch {
            return (error as? WebhookError)?.code
        }
    }

    private func headers(
        _ generations: [WebhookSigner.Generation],
        at time: WallTime? = nil
    ) throws -> [String: String] {
        let headers = try WebhookSigner(generations).headers(messageID: "msg_1", at: time ?? self.time, body: body)
        return Dictionary(uniqueKeysWithValues: headers.map { ($0.name, $0.value) })
    }

    private func refusal(
        _ headers: [String: String],
        with secret: WebhookSecret,
        body: [UInt8]? = nil,
        at time: WallTime? = nil
    ) -> WebhookError.Code? {
        code {
            let verifier = try WebhookVerifier([secret.receiverText])
            try verifier.verify(body: body ?? self.body, at: time ?? self.time) { headers[$0] }
        }
    }

    @Test("A message carries a signature of each live secret: HMAC first, the newest first, single spaces.")
    func generations() throws {
        let (old, new) = (try WebhookSecret.newHMAC(), try WebhookSecret.newHMAC())
        let (oldKey, newKey) = (try WebhookSecret.newEd25519(), try WebhookSecret.newEd25519())
        let end = time + .seconds(60)
        let generations: [WebhookSigner.Generation] = [
            .init(1, old, expiresAt: end), .init(1, oldKey, expiresAt: end), .init(2, new), .init(2, newKey),
        ]
        let both = try headers(generations)
        let parts = try #require(both["webhook-signature"]).split(separator: " ", omittingEmptySubsequences: false)
        #expect(parts.map { $0.prefix { $0 != "," } } == ["v1", "v1", "v1a", "v1a"])
        let single = try [2, 0, 3, 1].map { try #require(headers([generations[$0]])["webhook-signature"]) }
        #expect(parts.map(String.init) == single)
        for secret in [old, new, oldKey, newKey] { #expect(refusal(both, with: secret) == nil) }
    }

    @Test("A secret that was replaced is refused when the overlap ends.")
    func overlap() throws {
        let (old, new) = (try WebhookSecret.newHMAC(), try WebhookSecret.newHMAC())
        let generations: [WebhookSigner.Generation] = [.init(1, old, expiresAt: time), .init(2, new)]
        #expect(refusal(try headers(generations, at: time - .seconds(1)), with: old) == nil)
        #expect(refusal(try headers(generations), with: old) == .badSignature)
        #expect(refusal(try headers(generations), with: new) == nil)
        #expect(code { _ = try headers([generations[0]]) } == .noLiveSecret)
        #expect(code { _ = try headers([]) } == .noLiveSecret)
    }

    @Test("Another body, id, time or secret is refused.", arguments: ["v1", "v1a"])
    func tampered(version: String) throws {
        let make = version == "v1" ? WebhookSecret.newHMAC : WebhookSecret.newEd25519
        let secret = try make()
        let genuine = try headers([.init(1, secret)])
        #expect(refusal(genuine, with: secret) == nil)
        #expect(refusal(genuine, with: try make()) == .badSignature)
        #expect(refusal(genuine, with: secret, body: body + [0x20]) == .badSignature)
        #expect(refusal(genuine, with: secret, body: []) == .badSignature)
        let changes: [(String, String?, WebhookError.Code)] = [
            ("webhook-id", "msg_2", .badSignature), ("webhook-id", "msg_1.1790000000", .malformedHeader),
            ("webhook-id", "", .malformedHeader), ("webhook-id", nil, .malformedHeader),
            ("webhook-timestamp", "1790000001", .badSignature), ("webhook-timestamp", "01790000000", .malformedHeader),
            ("webhook-timestamp", "1790000000.0", .malformedHeader), ("webhook-timestamp", nil, .malformedHeader),
            ("webhook-signature", nil, .malformedHeader), ("webhook-signature", "", .badSignature),
            ("webhook-signature", "v1,", .badSignature), ("webhook-signature", "v1a,", .badSignature),
        ]
        for (name, value, code) in changes {
            var headers = genuine
            headers[name] = value
            #expect(refusal(headers, with: secret) == code, "\(name): \(value ?? "-")")
        }
        var swapped = genuine
        let signature = try #require(genuine["webhook-signature"]).drop { $0 != "," }
        swapped["webhook-signature"] = (version == "v1" ? "v1a" : "v1") + signature
        #expect(refusal(swapped, with: secret) == .badSignature)
        swapped["webhook-signature"] = "v2,AAAA v1,AAAA \(version)\(signature)"
        #expect(refusal(swapped, with: secret) == nil)
    }

    @Test("A message is accepted within five minutes of its time, before and after.")
    func tolerance() throws {
        let secret = try WebhookSecret.newHMAC()
        let headers = try headers([.init(1, secret)])
        for (seconds, code) in [(-301, .tooNew), (-300, nil), (300, nil), (301, .tooOld)] as [(Int, WebhookError.Code?)]
        {
            #expect(refusal(headers, with: secret, at: time + .seconds(seconds)) == code, "\(seconds)")
        }
        var ancient = headers
        ancient["webhook-timestamp"] = "\(Int64.min)"
        #expect(refusal(ancient, with: secret) == .tooOld)
        ancient["webhook-timestamp"] = "\(Int64.max)"
        #expect(refusal(ancient, with: secret) == .tooNew)
    }

    @Test("Generated secrets have the form of the specification, and are never the same twice.")
    func generated() throws {
        let hmac = try WebhookSecret.newHMAC()
        #expect(hmac.text.hasPrefix("whsec_") && hmac.text == hmac.receiverText)
        #expect(try Base64.decode(String(hmac.text.dropFirst(6))).count == 32)
        #expect(try WebhookSecret.newHMAC().text != hmac.text)
        let key = try WebhookSecret.newEd25519()
        #expect(key.text.hasPrefix("whsk_") && key.receiverText.hasPrefix("whpk_"))
        #expect(try Base64.decode(String(key.text.dropFirst(5))).count == 64)
        #expect(try WebhookSecret(parsing: key.text).text == key.text)
        let seed = try Base64.decode(String(key.text.dropFirst(5))).prefix(32)
        #expect(try WebhookSecret(parsing: "whsk_" + Base64.encode(Array(seed))).text == key.text)
        for secret in [hmac, key] {
            #expect(secret.fingerprint.count == 8)
            #expect(secret.fingerprint == SealedSecret.fingerprint(of: secret.receiverText))
            #expect("\(secret)" == "\(secret.purpose.rawValue) \(secret.fingerprint)")
        }
    }

    @Test(
        "A secret of another form is refused, and the message has no part of it.",
        arguments: [
            "", "whsec_", "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=",
            "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaS", "whsec_ MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "whsk_AAAA",
            "whpk_1SiA4o9hyqTCpIqC5V9HUakiiaeACeqfZTInDBbOir4=",
            "whsk_6Xb/dCcHpPea21PS1N9VY/NZW723CEc77N4rJCubMbfVKIDij2HKpMKkioLlX0dRqSKJp4AJ6p9lMicMFs6Kvw==",
            "whsec_" + String(repeating: "A", count: 88),
        ]
    )
    func malformed(text: String) {
        let error = #expect(throws: WebhookError.self) { try WebhookSecret(parsing: text) }
        #expect(error?.code == .malformedSecret)
        #expect(error?.message.contains("AAAA") == false && error?.message.contains("MfKQ") == false)
    }

    @Test("A sealed secret opens for its row only, and only with its key.")
    func sealed() throws {
        let keys = try SealingKeys(parsing: SealingKeys.newLine(name: "k"))
        let place = SealedSecret(endpoint: 7, purpose: .hmac, generation: 2)
        let secret = try WebhookSecret.newHMAC()
        let sealed = try place.seal(secret.text, with: keys)
        #expect(try place.openWebhookSecret(sealed, with: keys).text == secret.text)
        let others: [SealedSecret] = [
            .init(endpoint: 8, purpose: .hmac, generation: 2), .init(endpoint: 7, purpose: .ed25519, generation: 2),
            .init(endpoint: 7, purpose: .hmac, generation: 1),
        ]
        for other in others { #expect(code { _ = try other.open(sealed, with: keys) } == .foreignSecret) }
        let foreign = try SealingKeys(parsing: SealingKeys.newLine(name: "other"))
        #expect(code { _ = try place.open(sealed, with: foreign) } == .unopenedSecret)
        var altered = sealed
        altered[altered.count - 1] ^= 2
        #expect(code { _ = try place.open(altered, with: keys) } == .unopenedSecret)
        #expect(code { _ = try place.open(keys.seal(Array("{}".utf8)), with: keys) } == .foreignSecret)
        let header = SealedSecret(endpoint: 7, purpose: .authorization, generation: 1)
        #expect(try header.open(header.seal("Bearer \"ä\"", with: keys), with: keys) == "Bearer \"ä\"")
    }
}
