import Basics
import JOSE
import Testing
import Webhooks

/// The Standard Webhooks specification 1.0.0. Its two signatures are in the section on headers, their keys and messages in the
/// tests of its reference implementations.
@Suite("The Standard Webhooks specification")
struct SpecificationTests {
    private static let id = "msg_p5jXN8AQM9LWM0D4loKWxJek"
    private static let time = WallTime(seconds: 1_614_265_330)
    private static let body = Array(#"{"test": 2432232314}"#.utf8)

    @Test(
        "Both vectors are signed alike, and accepted with what the receiver has.",
        arguments: [
            (
                "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
                "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
            ),
            (
                "whsk_6Xb/dCcHpPea21PS1N9VY/NZW723CEc77N4rJCubMbfVKIDij2HKpMKkioLlX0dRqSKJp4AJ6p9lMicMFs6Kvg==",
                "whpk_1SiA4o9hyqTCpIqC5V9HUakiiaeACeqfZTInDBbOir4=",
                "v1a,hnO3f9T8Ytu9HwrXslvumlUpqtNVqkhqw/enGzPCXe5BdqzCInXqYXFymVJaA7AZdpXwVLPo3mNl8EM+m7TBAg=="
            ),
        ]
    )
    func vectors(text: String, receiverText: String, signature: String) throws {
        let secret = try WebhookSecret(parsing: text)
        #expect(secret.text == text)
        #expect(secret.receiverText == receiverText)
        let headers = try WebhookSigner([.init(1, secret)]).headers(messageID: Self.id, at: Self.time, body: Self.body)
        #expect(headers.map(\.name) == ["webhook-id", "webhook-timestamp", "webhook-signature"])
        #expect(headers.map(\.value) == [Self.id, "1614265330", signature])
        let verifier = try WebhookVerifier([receiverText])
        let id = try verifier.verify(body: Self.body, at: Self.time) { name in headers.first { $0.name == name }?.value
        }
        #expect(id == Self.id)
    }
}
