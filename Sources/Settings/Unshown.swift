/// What must not be repeated where somebody put it by mistake: on a terminal that is shared, in a log, in a ticket.
package enum Unshown {
    /// What stands for it.
    package static let mask = "****"

    /// Whether a text looks like a URL, which may hold a password, or like a token.
    package static func holdsSecret(_ text: some StringProtocol) -> Bool {
        text.contains("://") || holdsToken(text)
    }

    /// Whether a text looks like a compact JWS (RFC 7515 §7.1) or the body of a request around one.
    ///
    /// Apple's identifiers of people and apps have dots too: their parts are shorter.
    package static func holdsToken(_ text: some StringProtocol) -> Bool {
        if text.hasPrefix("eyJ") || text.contains("\"eyJ") { return true }
        let parts = text.split(separator: ".", omittingEmptySubsequences: false)
        return parts.count == 3 && parts[0].utf8.count >= 10 && parts.dropFirst().allSatisfy { $0.utf8.count >= 40 }
            && parts.allSatisfy { $0.utf8.allSatisfy(isBase64URL) }
    }

    /// The text, or the mask in its place.
    package static func shown(_ text: String) -> String {
        holdsSecret(text) ? mask : text
    }

    private static func isBase64URL(_ byte: UInt8) -> Bool {
        switch byte {
        case UInt8(ascii: "a")...UInt8(ascii: "z"), UInt8(ascii: "A")...UInt8(ascii: "Z"),
            UInt8(ascii: "0")...UInt8(ascii: "9"), UInt8(ascii: "-"), UInt8(ascii: "_"):
            true
        default:
            false
        }
    }
}
