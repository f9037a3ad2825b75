/// Strict base64url: RFC 4648 §5 without padding, as JWS (RFC 7515 §2) wants it.
///
/// Every byte string has exactly one spelling here. Padding, whitespace, the characters of plain base64 and unused last
/// bits that are not zero are refused, so two different tokens never mean the same bytes.
package enum Base64URL {
    /// The bytes that `text` spells.
    ///
    /// - Throws: `malformedBase64URL`.
    package static func decode(_ text: Span<UInt8>) throws(JOSEError) -> [UInt8] {
        let tail = text.count & 3
        guard tail != 1 else {
            throw JOSEError(code: .malformedBase64URL, message: "base64url text has an impossible length")
        }
        let length = text.count / 4 * 3 + (tail == 0 ? 0 : tail - 1)
        var isCanonical = false
        // Four bytes are stored where three count; the capacity has room for the last fourth.
        let decoded = unsafe [UInt8](unsafeUninitializedCapacity: length + 4) { output, count in
            guard let start = output.baseAddress else { return }
            isCanonical = unsafe decode(text, tail: tail, to: UnsafeMutableRawPointer(start))
            count = isCanonical ? length : 0
        }
        guard isCanonical else {
            throw JOSEError(code: .malformedBase64URL, message: "text is not canonical base64url without padding")
        }
        return decoded
    }

    /// Decodes to `output`, which has room for three bytes for each four characters or less, and one more. False if a
    /// character is outside the alphabet or the last one has bits that stand for nothing.
    private static func decode(_ text: Span<UInt8>, tail: Int, to output: UnsafeMutableRawPointer) -> Bool {
        let groups = groups.span
        var marks: UInt32 = 0
        var read = 0
        var written = 0
        // The indices below stay within bounds: four characters are read only while four are left, and an index into the
        // 1024 groups is the place of the character in its group of four and its eight bits.
        while read < text.count &- tail {
            let group =
                unsafe groups[unchecked: Int(text[unchecked: read])]
                | groups[unchecked: 256 | Int(text[unchecked: read &+ 1])]
                | groups[unchecked: 512 | Int(text[unchecked: read &+ 2])]
                | groups[unchecked: 768 | Int(text[unchecked: read &+ 3])]
            marks |= group
            unsafe output.storeBytes(of: group.bigEndian, toByteOffset: written, as: UInt32.self)
            read &+= 4
            written &+= 3
        }
        if tail >= 2 {
            let third = tail == 3 ? groups[512 | Int(text[read + 2])] : 0
            let group = groups[Int(text[read])] | groups[256 | Int(text[read + 1])] | third
            let unused: UInt32 = tail == 3 ? 0x0000_FF00 : 0x00FF_FF00
            marks |= group | (group & unused == 0 ? 0 : invalid)
            unsafe output.storeBytes(of: group.bigEndian, toByteOffset: written, as: UInt32.self)
        }
        return marks & invalid == 0
    }

    /// The bytes that `text` spells.
    ///
    /// - Throws: `malformedBase64URL`.
    package static func decode(_ text: String) throws(JOSEError) -> [UInt8] {
        let characters = Array(text.utf8)
        return try decode(characters.span)
    }

    /// The one spelling of `bytes`.
    package static func encode(_ bytes: [UInt8]) -> String {
        var text: [UInt8] = []
        text.reserveCapacity((bytes.count * 4 + 2) / 3)
        var read = 0
        while read < bytes.count {
            let first = bytes[read]
            let second = read + 1 < bytes.count ? bytes[read + 1] : 0
            let third = read + 2 < bytes.count ? bytes[read + 2] : 0
            text.append(alphabet[Int(first >> 2)])
            text.append(alphabet[Int((first << 4 | second >> 4) & 0x3F)])
            if read + 1 < bytes.count { text.append(alphabet[Int((second << 2 | third >> 6) & 0x3F)]) }
            if read + 2 < bytes.count { text.append(alphabet[Int(third & 0x3F)]) }
            read += 3
        }
        return String(decoding: text, as: UTF8.self)
    }

    /// The mark of a character outside the alphabet, in the byte of a group that no value reaches.
    private static let invalid: UInt32 = 0xFF

    private static let alphabet = Array("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_".utf8)

    /// For each of the four places in a group, what each character contributes to the highest 24 bits.
    private static let groups: [UInt32] = {
        var groups = [UInt32](repeating: invalid, count: 1024)
        for (value, character) in alphabet.enumerated() {
            for place in 0..<4 { groups[place << 8 | Int(character)] = UInt32(value) << (26 - 6 * UInt32(place)) }
        }
        return groups
    }()
}
