/// Strict base64url: RFC 4648 §5 without padding, as JWS (RFC 7515 §2) requires it.
///
/// Every byte string has exactly one encoding. Padding, whitespace, the characters of plain base64 and unused last bits that
/// are not zero are refused, so that two different tokens never decode to the same bytes.
package enum Base64URL {
    package static func decode(_ text: Span<UInt8>) throws(JOSEError) -> [UInt8] {
        let tail = text.count % 4
        guard tail != 1 else { throw JOSEError(.malformedBase64URL, "base64url text has an impossible length") }
        let values = values.span
        var bits: UInt32 = 0
        var marks: UInt8 = 0
        let bytes = [UInt8](capacity: text.count * 3 / 4) { bytes in
            for index in text.indices {
                let value = values[Int(text[index])]
                marks |= value
                bits = bits << 6 | UInt32(value & 0x3F)
                switch index % 4 {
                case 0: break
                case 1: bytes.append(UInt8(truncatingIfNeeded: bits >> 4))
                case 2: bytes.append(UInt8(truncatingIfNeeded: bits >> 2))
                default: bytes.append(UInt8(truncatingIfNeeded: bits))
                }
            }
        }
        let unused: UInt32 = [0, 0, 0b1111, 0b11][tail]
        guard marks < invalid, bits & unused == 0 else {
            throw JOSEError(.malformedBase64URL, "text is not canonical base64url without padding")
        }
        return bytes
    }

    package static func decode(_ text: String) throws(JOSEError) -> [UInt8] {
        try decode(text.utf8.span)
    }

    package static func encode(_ bytes: [UInt8]) -> String {
        String(decoding: digits(of: bytes, alphabet), as: UTF8.self)
    }

    /// Six bits for each character of an alphabet, without padding.
    static func digits(of bytes: [UInt8], _ alphabet: [UInt8]) -> [UInt8] {
        var text: [UInt8] = []
        text.reserveCapacity((bytes.count * 4 + 2) / 3)
        var bits: UInt32 = 0
        var count: UInt32 = 0
        for byte in bytes {
            bits = bits << 8 | UInt32(byte)
            count += 8
            while count >= 6 {
                count -= 6
                text.append(alphabet[Int(bits >> count & 0x3F)])
            }
        }
        if count > 0 { text.append(alphabet[Int(bits << (6 - count) & 0x3F)]) }
        return text
    }

    private static let alphabet = Array("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_".utf8)

    /// Marks a byte outside the alphabet: greater than every value.
    private static let invalid: UInt8 = 0x40

    /// The value of each byte.
    private static let values: [UInt8] = {
        var values = [UInt8](repeating: invalid, count: 256)
        for (value, character) in alphabet.enumerated() { values[Int(character)] = UInt8(value) }
        return values
    }()
}
