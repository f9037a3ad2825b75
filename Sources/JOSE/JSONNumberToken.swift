/// A JSON number that was found to be well formed.
struct JSONNumberToken {
    let start: Int
    /// The first byte after the number.
    let end: Int
    /// Where the digits after the point begin; the end of the digits where there is no point.
    private let fraction: Int
    /// Where the digits end and an exponent may begin.
    private let exponent: Int

    /// Scans the number that begins at `start`: RFC 8259 §6, so no leading zeros, no plus sign, no bare point.
    init(scanning bytes: Span<UInt8>, from start: Int) throws(JOSEError) {
        self.start = start
        var index = start
        if index < bytes.count, bytes[index] == UInt8(ascii: "-") { index += 1 }
        let whole = index
        index = Self.skipDigits(bytes, from: index)
        guard index > whole else { throw Self.malformed(at: index) }
        guard index == whole + 1 || bytes[whole] != UInt8(ascii: "0") else {
            throw JOSEError(code: .malformedJSON, message: "a JSON number has a leading zero", offset: whole)
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

    /// The number's exact value, if that is a 64-bit integer. `bytes` is what was scanned.
    func integer(of bytes: Span<UInt8>) -> Int64? {
        let isNegative = bytes[start] == UInt8(ascii: "-")
        let digits = isNegative ? start + 1 : start
        if fraction == end, end - digits <= 18 {
            var value: Int64 = 0
            for index in digits..<end { value = value &* 10 &+ Int64(bytes[index] &- UInt8(ascii: "0")) }
            return isNegative ? -value : value
        }
        // The value is the digits without the point, times ten to the power of `scale`.
        var scale = power(of: bytes) - (exponent - fraction)
        var last = exponent
        while last > digits, bytes[last - 1] == UInt8(ascii: "0") || bytes[last - 1] == UInt8(ascii: ".") {
            last -= 1
            if bytes[last] == UInt8(ascii: "0") { scale += 1 }
        }
        guard last > digits else { return 0 }
        guard scale >= 0 else { return nil }
        var value: Int64 = 0
        for index in digits..<last where bytes[index] != UInt8(ascii: ".") {
            let digit = Int64(bytes[index] - UInt8(ascii: "0"))
            guard let next = Self.shifted(value, adding: isNegative ? -digit : digit) else { return nil }
            value = next
        }
        // The value is not zero, so it leaves the range after 18 rounds at most.
        for _ in 0..<scale {
            guard let next = Self.shifted(value, adding: 0) else { return nil }
            value = next
        }
        return value
    }

    /// The exponent, held within a range that no number of digits in memory can make up for.
    private func power(of bytes: Span<UInt8>) -> Int {
        guard exponent < end else { return 0 }
        var value = 0
        for index in exponent + 1..<end where bytes[index] >= UInt8(ascii: "0") {
            value = min(value * 10 + Int(bytes[index] - UInt8(ascii: "0")), Self.largestPower)
        }
        return bytes[exponent + 1] == UInt8(ascii: "-") ? -value : value
    }

    private static let largestPower = 1_000_000_000_000

    private static func shifted(_ value: Int64, adding digit: Int64) -> Int64? {
        let (product, overflowed) = value.multipliedReportingOverflow(by: 10)
        let (sum, exceeded) = product.addingReportingOverflow(digit)
        return overflowed || exceeded ? nil : sum
    }

    private static func skipDigits(_ bytes: Span<UInt8>, from start: Int) -> Int {
        var index = start
        while index < bytes.count, UInt8(ascii: "0")...UInt8(ascii: "9") ~= bytes[index] { index += 1 }
        return index
    }

    private static func malformed(at offset: Int) -> JOSEError {
        JOSEError(code: .malformedJSON, message: "a JSON number is cut short", offset: offset)
    }
}
