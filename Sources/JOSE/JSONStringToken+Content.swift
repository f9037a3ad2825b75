extension JSONStringToken {
    /// The string, escapes undone. `bytes` is what was scanned.
    func text(of bytes: [UInt8]) -> String {
        if isEscaped { return String(decoding: content(of: bytes), as: UTF8.self) }
        let span = bytes.span.extracting(start..<end)
        // The scan has found these bytes to be UTF-8.
        return String(copying: unsafe UTF8Span(unchecked: span))
    }

    /// The string's UTF-8, escapes undone. `bytes` is what was scanned.
    func content(of bytes: [UInt8]) -> [UInt8] {
        guard isEscaped else { return Array(bytes[start..<end]) }
        let source = bytes.span
        // Within bounds: undoing an escape never makes a string longer, so what is written never overtakes what is read.
        return unsafe [UInt8](unsafeUninitializedCapacity: end - start) { output, count in
            var read = start
            while read < end {
                let byte = source[read]
                if byte != UInt8(ascii: "\\") {
                    unsafe output[count] = byte
                    count &+= 1
                    read &+= 1
                } else if source[read + 1] == UInt8(ascii: "u") {
                    let scalar = Self.scalar(source, at: &read)
                    for unit in Unicode.UTF8.encode(scalar) ?? Unicode.UTF8.encodedReplacementCharacter {
                        unsafe output[count] = unit
                        count += 1
                    }
                } else {
                    unsafe output[count] = Self.simpleEscape(source[read + 1])
                    count &+= 1
                    read &+= 2
                }
            }
        }
    }

    /// The character of the checked escape at `index`, which is moved behind it.
    private static func scalar(_ bytes: Span<UInt8>, at index: inout Int) -> Unicode.Scalar {
        var value = unit(bytes, at: index)
        index += 6
        if 0xD800...0xDBFF ~= value {
            value = 0x10000 + (value - 0xD800) << 10 + (unit(bytes, at: index) - 0xDC00)
            index += 6
        }
        return Unicode.Scalar(value) ?? "\u{FFFD}"
    }

    private static func unit(_ bytes: Span<UInt8>, at index: Int) -> UInt32 {
        var value: UInt32 = 0
        for digit in index + 2..<index + 6 { value = value << 4 | (hexadecimalDigit(bytes[digit]) ?? 0) }
        return value
    }

    private static func simpleEscape(_ byte: UInt8) -> UInt8 {
        switch byte {
        case UInt8(ascii: "b"): 0x08
        case UInt8(ascii: "f"): 0x0C
        case UInt8(ascii: "n"): 0x0A
        case UInt8(ascii: "r"): 0x0D
        case UInt8(ascii: "t"): 0x09
        default: byte
        }
    }
}
