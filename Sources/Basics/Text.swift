extension Unicode.Scalar {
    /// True for characters that are not seen or that change how other characters are shown, such as control and
    /// formatting characters. Some of them reverse the direction of writing.
    package var isInvisible: Bool {
        switch properties.generalCategory {
        case .control, .format, .lineSeparator, .paragraphSeparator, .surrogate, .unassigned, .privateUse: true
        default: false
        }
    }
}

extension String {
    /// Appends `text` as a JSON string with its quotes (RFC 8259 §7). Only what JSON requires is escaped, and with
    /// `escapingInvisible` every invisible character too, for output that people read.
    package mutating func appendJSON(_ text: String, escapingInvisible: Bool) {
        append("\"")
        defer { append("\"") }
        guard text.utf8.contains(where: \.needsCareInJSON) else {
            append(text)
            return
        }
        for scalar in text.unicodeScalars {
            switch scalar {
            case "\"": append("\\\"")
            case "\\": append("\\\\")
            case "\n": append("\\n")
            case "\r": append("\\r")
            case "\t": append("\\t")
            case " "..<"\u{7F}": unicodeScalars.append(scalar)
            default:
                guard scalar < " " || escapingInvisible && scalar.isInvisible else {
                    unicodeScalars.append(scalar)
                    continue
                }
                // A character outside the basic plane is escaped as a pair of surrogates.
                for unit in String(scalar).utf16 {
                    let digits = String(unit, radix: 16)
                    append("\\u" + String(repeating: "0", count: 4 - digits.count) + digits)
                }
            }
        }
    }

    /// True if both have the same bytes. Swift's `==` also accepts canonically equivalent text, such as the Kelvin sign
    /// for `K`; PostgreSQL and signed texts distinguish them.
    package func hasSameBytes(as other: String) -> Bool {
        utf8.elementsEqual(other.utf8)
    }

    /// The text with every byte escaped except unreserved characters (RFC 3986 §2.3), for any part of a URL or a form.
    package var percentEncoded: String {
        let digits = Array("0123456789ABCDEF".utf8)
        var encoded: [UInt8] = []
        encoded.reserveCapacity(utf8.count)
        for byte in utf8 {
            if byte.isLetterOrDigit || "-._~".utf8.contains(byte) {
                encoded.append(byte)
            } else {
                encoded += [UInt8(ascii: "%"), digits[Int(byte >> 4)], digits[Int(byte & 0xF)]]
            }
        }
        return String(decoding: encoded, as: UTF8.self)
    }

    package var holdsControlCharacter: Bool {
        unicodeScalars.contains { $0.value < 0x20 || 0x7F..<0xA0 ~= $0.value }
    }

    /// The name that this one probably misspells: the one that differs in the fewest characters; nil if all differ in many.
    package func nearest(in names: [String]) -> String? {
        // A replaced character counts twice: as removed and as inserted.
        let differences = names.map { (name: $0, count: $0.difference(from: prefix(64)).count) }
        guard let best = differences.min(by: { $0.count < $1.count }),
            best.count <= max(2, best.name.utf8.count * 2 / 5)
        else { return nil }
        return best.name
    }
}

/// A `%` that two hexadecimal digits do not follow.
package struct MalformedEscape: Error {}

extension ArraySlice<UInt8> {
    /// Removes the first byte, or the first percent-encoded byte such as `%2F`, and returns it decoded; nil at the end.
    package mutating func popPercentDecoded() throws(MalformedEscape) -> UInt8? {
        let byte = popFirst()
        guard byte == UInt8(ascii: "%") else { return byte }
        guard let high = popFirst()?.hexadecimalDigit, let low = popFirst()?.hexadecimalDigit else {
            throw MalformedEscape()
        }
        return high << 4 | low
    }
}

extension UInt8 {
    /// True for A–Z, a–z and 0–9.
    package var isLetterOrDigit: Bool {
        switch self {
        case UInt8(ascii: "A")...UInt8(ascii: "Z"), UInt8(ascii: "a")...UInt8(ascii: "z"),
            UInt8(ascii: "0")...UInt8(ascii: "9"):
            true
        default: false
        }
    }

    /// False for bytes that JSON strings contain as they are, and that are visible: nearly every text has no others.
    fileprivate var needsCareInJSON: Bool {
        !(0x20..<0x7F).contains(self) || self == UInt8(ascii: "\"") || self == UInt8(ascii: "\\")
    }

    /// The value of an ASCII hexadecimal digit.
    package var hexadecimalDigit: UInt8? {
        switch self {
        case UInt8(ascii: "0")...UInt8(ascii: "9"): self - UInt8(ascii: "0")
        case UInt8(ascii: "a")...UInt8(ascii: "f"): self - UInt8(ascii: "a") + 10
        case UInt8(ascii: "A")...UInt8(ascii: "F"): self - UInt8(ascii: "A") + 10
        default: nil
        }
    }
}

extension Sequence<UInt8> {
    /// Two lower-case digits for each byte.
    package var hexadecimal: String {
        let digits = Array("0123456789abcdef".utf8)
        var text: [UInt8] = []
        text.reserveCapacity(underestimatedCount * 2)
        for byte in self {
            text.append(digits[Int(byte >> 4)])
            text.append(digits[Int(byte & 0xF)])
        }
        return String(decoding: text, as: UTF8.self)
    }
}

extension Int {
    /// With separators: `1,234,567`.
    package var grouped: String {
        let digits = String(magnitude)
        var text = ""
        for (index, digit) in digits.enumerated() {
            if index > 0, (digits.count - index) % 3 == 0 { text.append(",") }
            text.append(digit)
        }
        return self < 0 ? "-" + text : text
    }
}

extension BidirectionalCollection {
    /// The elements without the ones at both ends that satisfy the condition.
    @inlinable package func trimmed(_ isTrimmed: (Element) -> Bool) -> SubSequence {
        let end = lastIndex { !isTrimmed($0) }.map { index(after: $0) } ?? startIndex
        return self[..<end].drop(while: isTrimmed)
    }
}

extension Substring {
    /// The text with percent-encoded bytes decoded; nil if an escape is malformed or the result is not UTF-8.
    package var percentDecoded: String? {
        var rest = Array(utf8)[...]
        var bytes: [UInt8] = []
        do {
            while let byte = try rest.popPercentDecoded() { bytes.append(byte) }
        } catch {
            return nil
        }
        return String(validating: bytes, as: UTF8.self)
    }
}
