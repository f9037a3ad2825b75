/// Why a secret can't be used, or a message is not accepted. The message never contains a secret or a part of the body.
package struct WebhookError: Error, Sendable, Hashable, CustomStringConvertible {
    package enum Code: String, Sendable, Hashable, CaseIterable {
        /// Not `whsec_`, `whsk_` or `whpk_` with base64 of the right length.
        case malformedSecret = "malformed-secret"
        /// No key of the ring opens it.
        case unopenedSecret = "unopened-secret"
        /// It was sealed for another row.
        case foreignSecret = "foreign-secret"
        /// Every generation has ended.
        case noLiveSecret = "no-live-secret"
        case malformedHeader = "malformed-header"
        case tooOld = "too-old"
        case tooNew = "too-new"
        case badSignature = "bad-signature"
        /// libcrypto failed.
        case cryptography
    }

    package let code: Code
    package let message: String

    package init(_ code: Code, _ message: String) {
        self.code = code
        self.message = message
    }

    package var description: String { message }
}
