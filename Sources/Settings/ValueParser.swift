/// From the text of a setting to its value; the errors say what to write.
enum ValueParser {
    /// Whole numbers with a unit, also several in a row: `1h`, `60s`, `1h30m`, `500ms`, `400d`.
    static func duration(_ text: String, in range: ClosedRange<Duration>) throws(MalformedValue) -> Duration {
        let malformed = MalformedValue("write a duration such as 500ms, 60s, 5m, 1h or 400d")
        var rest = text.utf8[...]
        var total: Int64 = 0
        guard !rest.isEmpty else { throw malformed }
        while !rest.isEmpty {
            let number = try number(from: &rest, or: malformed)
            let unit = rest.prefix { !isDigit($0) }
            rest = rest.dropFirst(unit.count)
            let milliseconds: Int64
            switch Substring(unit) {
            case "ms": milliseconds = 1
            case "s": milliseconds = 1_000
            case "m": milliseconds = 60_000
            case "h": milliseconds = 3_600_000
            case "d": milliseconds = 86_400_000
            default: throw malformed
            }
            let product = number.multipliedReportingOverflow(by: milliseconds)
            let sum = total.addingReportingOverflow(product.partialValue)
            guard !product.overflow, !sum.overflow else { throw malformed }
            total = sum.partialValue
        }
        let duration = Duration.milliseconds(total)
        guard range.contains(duration) else {
            throw MalformedValue("write a duration from \(range.lowerBound.short) to \(range.upperBound.short)")
        }
        return duration
    }

    /// Bytes: `1GiB`, `512MiB`, `64KiB`, `1GB`, or a plain number.
    static func size(_ text: String) throws(MalformedValue) -> Int64 {
        let malformed = MalformedValue("write a size such as 512MiB or 1GiB")
        var rest = text.utf8[...]
        let number = try number(from: &rest, or: malformed)
        let unit: Int64
        switch Substring(rest).lowercased() {
        case "", "b": unit = 1
        case "kib": unit = 1 << 10
        case "mib": unit = 1 << 20
        case "gib": unit = 1 << 30
        case "tib": unit = 1 << 40
        case "kb": unit = 1_000
        case "mb": unit = 1_000_000
        case "gb": unit = 1_000_000_000
        case "tb": unit = 1_000_000_000_000
        default: throw malformed
        }
        let product = number.multipliedReportingOverflow(by: unit)
        guard !product.overflow, product.partialValue > 0 else { throw malformed }
        return product.partialValue
    }

    /// Bytes within a range.
    static func size(_ text: String, in range: ClosedRange<Int64>) throws(MalformedValue) -> Int64 {
        let size = try size(text)
        guard range.contains(size) else {
            throw MalformedValue("write a size from \(range.lowerBound >> 10)KiB to \(range.upperBound >> 30)GiB")
        }
        return size
    }

    /// A whole number of the range, digits only.
    static func integer(_ text: String, in range: ClosedRange<Int>) throws(MalformedValue) -> Int {
        guard !text.isEmpty, text.utf8.allSatisfy(isDigit), let value = Int(text), range.contains(value) else {
            throw MalformedValue("write a whole number from \(range.lowerBound) to \(range.upperBound)")
        }
        return value
    }

    /// An absolute path of a URL, without query and fragment.
    static func urlPath(_ text: String) throws(MalformedValue) -> String {
        let isPath = text.utf8.allSatisfy { byte in
            byte > 0x20 && byte < 0x7f && byte != UInt8(ascii: "?") && byte != UInt8(ascii: "#")
        }
        guard text.hasPrefix("/"), isPath else {
            throw MalformedValue("write a path that starts with /, such as /apple/notifications")
        }
        return text
    }

    /// A libpq URI or keyword string, by its outer form only: libpq reads it when it connects.
    static func conninfo(_ text: String) throws(MalformedValue) -> String {
        let isURI = text.hasPrefix("postgres://") || text.hasPrefix("postgresql://")
        // A value of a keyword may hold anything, also what looks like the beginning of a URI.
        let beforeScheme = text.firstRange(of: "://").map { text[..<$0.lowerBound] } ?? text[...]
        guard isURI || beforeScheme.contains("=") else {
            throw MalformedValue("write a libpq URI such as postgres://siwad@localhost/siwa, or host=… dbname=…")
        }
        return try line(text)
    }

    /// Any text that is not empty and has no control characters.
    static func line(_ text: String) throws(MalformedValue) -> String {
        guard !text.isEmpty, text.utf8.allSatisfy({ $0 >= 0x20 && $0 != 0x7f }) else {
            throw MalformedValue("write one line of text")
        }
        return text
    }

    /// One of the cases of a vocabulary.
    static func word<Word: RawRepresentable & CaseIterable>(
        _ text: String,
        as type: Word.Type
    ) throws(MalformedValue) -> Word where Word.RawValue == String {
        guard let word = Word(rawValue: text.lowercased()) else {
            throw MalformedValue("write one of " + Word.allCases.map(\.rawValue).joined(separator: ", "))
        }
        return word
    }

    private static func number(
        from rest: inout Substring.UTF8View,
        or malformed: MalformedValue
    ) throws(MalformedValue) -> Int64 {
        let digits = rest.prefix(while: isDigit)
        guard let number = Int64(Substring(digits)) else { throw malformed }
        rest = rest.dropFirst(digits.count)
        return number
    }

    private static func isDigit(_ byte: UInt8) -> Bool {
        byte >= UInt8(ascii: "0") && byte <= UInt8(ascii: "9")
    }
}

extension Duration {
    /// As one writes it in a setting, in the largest unit that divides it: `5m`, `400d`, `500ms`.
    package var short: String {
        let parts = components
        let milliseconds = parts.seconds * 1_000 + parts.attoseconds / 1_000_000_000_000_000
        for (unit, name) in [(86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1_000, "s")] as [(Int64, String)]
        where milliseconds != 0 && milliseconds.isMultiple(of: unit) {
            return "\(milliseconds / unit)\(name)"
        }
        return milliseconds == 0 ? "0s" : "\(milliseconds)ms"
    }
}
