package import Basics
import JOSE

/// Verifies messages as a receiver does.
package struct WebhookVerifier: Sendable {
    package static let usualTolerance = Duration.seconds(300)

    private let keys: [SerializedKey]
    private let tolerance: Duration

    /// - Parameters:
    ///   - texts: `whsec_…` or `whpk_…`; a signature of any of them is accepted.
    ///   - tolerance: How far the timestamp may be from the present, before and after.
    /// - Throws: `malformedSecret`.
    package init(_ texts: [String], tolerance: Duration = usualTolerance) throws(WebhookError) {
        keys = try texts.map { text throws(WebhookError) in try SerializedKey(parsing: text) }
        self.tolerance = tolerance
    }

    /// - Parameter header: the value of a header by its name in lower case.
    /// - Returns: The message's id, by which a receiver recognises a message that it has already processed.
    /// - Throws: `malformedHeader`, `tooOld`, `tooNew`, `badSignature`.
    @discardableResult
    package func verify(
        body: [UInt8],
        at now: WallTime,
        header: (String) -> String?
    ) throws(WebhookError) -> String {
        guard let id = header("webhook-id"), !id.isEmpty, !id.contains("."),
            let timestamp = header("webhook-timestamp"), let seconds = Int64(timestamp), String(seconds) == timestamp,
            let signatures = header("webhook-signature")
        else {
            throw WebhookError(
                .malformedHeader,
                "webhook-id, webhook-timestamp or webhook-signature is missing or malformed"
            )
        }
        let age = now.duration(since: WallTime(seconds: seconds))
        guard age <= tolerance else { throw WebhookError(.tooOld, "the timestamp is too long ago") }
        guard age >= .zero - tolerance else { throw WebhookError(.tooNew, "the timestamp is in the future") }
        let content = WebhookContent.bytes(id: id, timestamp: seconds, body: body)
        for signature in signatures.split(separator: " ") {
            for key in keys where try key.made(signature, of: content) { return id }
        }
        throw WebhookError(.badSignature, "no signature is made with the secret: check that it is the endpoint's")
    }
}

extension SerializedKey {
    /// Whether `signature`, with its version, is this key's. Unknown versions are not.
    fileprivate func made(_ signature: Substring, of content: [UInt8]) throws(WebhookError) -> Bool {
        let parts = signature.split(separator: ",", maxSplits: 1, omittingEmptySubsequences: false)
        // What is not base64 is no signature.
        guard parts.count == 2, let bytes = try? Base64.decode(String(parts[1])) else { return false }
        return try cryptography { () throws(JOSEError) in
            switch (self, parts[0]) {
            case (.secret(let key), "v1"):
                try HMACSHA256.code(of: content, key: key).isEqualInConstantTime(to: bytes)
            case (.privateKey(let key), "v1a"): try key.publicKey.isValid(signature: bytes, over: content)
            case (.publicKey(let key), "v1a"): try key.isValid(signature: bytes, over: content)
            case (.secret, _), (.privateKey, _), (.publicKey, _): false
            }
        }
    }
}
