/// Strict base64: RFC 4648 §4 with its padding. Like `Base64URL`, it has exactly one encoding for a byte string.
package enum Base64 {
    /// - Throws: `malformedBase64`.
    package static func decode(_ text: String) throws(JOSEError) -> [UInt8] {
        let malformed = JOSEError(.malformedBase64, "text is not canonical base64 with padding")
        let padding = text.utf8.suffix(2).reversed().prefix { $0 == UInt8(ascii: "=") }.count
        let isURLText = text.utf8.contains { $0 == UInt8(ascii: "-") || $0 == UInt8(ascii: "_") }
        guard text.utf8.count.isMultiple(of: 4), !isURLText else { throw malformed }
        let urlText = text.utf8.dropLast(padding).map { byte in
            switch byte {
            case UInt8(ascii: "+"): UInt8(ascii: "-")
            case UInt8(ascii: "/"): UInt8(ascii: "_")
            default: byte
            }
        }
        do {
            return try Base64URL.decode(urlText.span)
        } catch {
            throw malformed
        }
    }

    package static func encode(_ bytes: [UInt8]) -> String {
        var text = Base64URL.digits(of: bytes, alphabet)
        for _ in 0..<(3 - bytes.count % 3) % 3 { text.append(UInt8(ascii: "=")) }
        return String(decoding: text, as: UTF8.self)
    }

    private static let alphabet = Array("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/".utf8)
}
