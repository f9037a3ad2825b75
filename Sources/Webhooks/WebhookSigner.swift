package import Basics

/// Signs the messages to an endpoint with each of its live secrets, so that receivers can replace a secret in their own time.
package struct WebhookSigner: Sendable {
    package struct Generation: Sendable {
        package let number: Int32
        package let secret: WebhookSecret
        /// nil for the latest generation.
        package let expiresAt: WallTime?

        package init(_ number: Int32, _ secret: WebhookSecret, expiresAt: WallTime? = nil) {
            self.number = number
            self.secret = secret
            self.expiresAt = expiresAt
        }
    }

    /// HMAC first, then Ed25519; of each the newest first.
    private let generations: [Generation]

    /// - Parameter generations: of the purposes that the endpoint signs with, in any order.
    package init(_ generations: [Generation]) {
        let newestFirst = generations.sorted { $0.number > $1.number }
        self.generations = [SecretPurpose.hmac, .ed25519].flatMap { purpose in
            newestFirst.filter { $0.secret.purpose == purpose }
        }
    }

    /// The headers of one attempt. `body` is signed as it is sent.
    ///
    /// - Throws: `noLiveSecret`.
    package func headers(
        messageID: String,
        at time: WallTime,
        body: [UInt8]
    ) throws(WebhookError) -> [(name: String, value: String)] {
        precondition(!messageID.contains("."), "a dot would let the id swallow a part of the timestamp")
        let content = WebhookContent.bytes(id: messageID, timestamp: time.wholeSeconds, body: body)
        var signatures: [String] = []
        for generation in generations where generation.expiresAt.map({ time.microseconds < $0.microseconds }) ?? true {
            signatures.append(try generation.secret.signature(of: content))
        }
        guard !signatures.isEmpty else {
            throw WebhookError(.noLiveSecret, "the endpoint has no live secret: siwad endpoints rotate makes one")
        }
        return [
            ("webhook-id", messageID), ("webhook-timestamp", String(time.wholeSeconds)),
            ("webhook-signature", signatures.joined(separator: " ")),
        ]
    }
}

enum WebhookContent {
    /// What is signed.
    static func bytes(id: String, timestamp: Int64, body: [UInt8]) -> [UInt8] {
        Array("\(id).\(timestamp).".utf8) + body
    }
}
