/// A JSON number as written, of any size and precision.
package struct JSONNumber: Sendable, Hashable {
    /// In the grammar of RFC 8259 §6.
    package let text: String
    /// The exact value if it is a 64-bit integer: `1.5e3` is 1500, `0.5` and `1e400` are nil.
    package let integer: Int64?

    package init(_ integer: Int64) {
        self.text = String(integer)
        self.integer = integer
    }

    init(_ token: JSONNumberToken, of bytes: [UInt8]) {
        text = String(decoding: bytes[token.start..<token.end], as: UTF8.self)
        integer = token.integer(of: bytes)
    }
}

/// The place of a well-formed JSON number in the text.
struct JSONNumberToken {
    let start: Int
    /// The first byte after the number.
    let end: Int
    /// Where the digits after the point begin, or the end of the digits if there is no point.
    private let fraction: Int
    /// Where the digits end.
    private let exponent: Int

    /// Scans the number that begins at `start`: RFC 8259 §6, so no leading zeros, no plus sign, no point without digits.
    init(scanning bytes: Span<UInt8>, from start: Int) throws(JOSEError) {
        self.start = start
        var index = start
        if index < bytes.count, bytes[index] == UInt8(ascii: "-") { index += 1 }
        let whole = index
        index = Self.skipDigits(bytes, from: index)
        guard index > whole else { throw Self.malformed(at: index) }
        guard index == whole + 1 || bytes[whole] != UInt8(ascii: "0") else {
            throw JOSEError(.malformedJSON, "a JSON number has a leading zero", at: whole)
        }
        var point = index
        if index < bytes.count, bytes[index] == UInt8(ascii: ".") {
            point = index + 1
            index = Self.skipDigits(bytes, from: point)
            guard index > point else { throw Self.malformed(at: index) }
        }
        fraction = point
        exponent = index
        if index < bytes.count, bytes[index] | 0x20 == UInt8(ascii: "e") {
            index += 1
            let hasSign =
                index < bytes.count && (bytes[index] == UInt8(ascii: "+") || bytes[index] == UInt8(ascii: "-"))
            if hasSign { index += 1 }
            let digits = index
            index = Self.skipDigits(bytes, from: index)
            guard index > digits else { throw Self.malformed(at: index) }
        }
        end = index
    }

    /// The exact value if it is a 64-bit integer. `bytes` is the scanned text.
    func integer(of bytes: [UInt8]) -> Int64? {
        if fraction == end { return Int64(String(decoding: bytes[start..<end], as: UTF8.self)) }
        // The value is the digits without the point, times ten to the power of `scale`.
        var digits = bytes[start..<exponent].filter { $0 != UInt8(ascii: ".") }
        var scale = fraction - exponent
        while digits.last == UInt8(ascii: "0") {
            digits.removeLast()
            scale += 1
        }
        guard let last = digits.last, last != UInt8(ascii: "-") else { return 0 }
        if exponent < end {
            // A number has too few digits to make up for a greater exponent.
            let text = String(decoding: bytes[(exponent + 1)..<end], as: UTF8.self)
            guard let power = Int32(text) else { return nil }
            scale += Int(power)
        }
        // Only zero has an integer with 19 or more zeros.
        guard 0...18 ~= scale else { return nil }
        return Int64(String(decoding: digits, as: UTF8.self) + String(repeating: "0", count: scale))
    }

    private static func skipDigits(_ bytes: Span<UInt8>, from start: Int) -> Int {
        var index = start
        while index < bytes.count, UInt8(ascii: "0")...UInt8(ascii: "9") ~= bytes[index] { index += 1 }
        return index
    }

    private static func malformed(at offset: Int) -> JOSEError {
        JOSEError(.malformedJSON, "a JSON number is cut short", at: offset)
    }
}
