import Glibc

extension WallTime {
    /// RFC 3339 in UTC, such as `2026-01-02T03:04:05.678Z`: three digits of a second, or six where microseconds need
    /// them. Parsing it gives the same time, in the years 1 to 9999.
    ///
    /// Databases and claims can hold times outside these years. Their years have as many digits as they need, and the ends
    /// of the range are `-infinity` and `infinity`, as PostgreSQL writes them.
    package var iso8601: String {
        switch microseconds {
        case .min: return "-infinity"
        case .max: return "infinity"
        default: break
        }
        // Subtracting the whole seconds would overflow before the first one of the range.
        let remainder = microseconds % 1_000_000
        let fraction = remainder < 0 ? remainder + 1_000_000 : remainder
        let date = utc
        let subsecond: String = fraction % 1_000 == 0 ? "\(fraction / 1_000, width: 3)" : "\(fraction, width: 6)"
        let day = "\(date.tm_year + 1900, width: 4)-\(date.tm_mon + 1, width: 2)-\(date.tm_mday, width: 2)"
        return "\(day)T\(date.clock).\(subsecond)Z"
    }

    /// The format of HTTP headers, `Sun, 06 Nov 1994 08:49:37 GMT` (IMF-fixdate, RFC 9110 §5.6.7), in English in every locale.
    package var httpDate: String {
        let date = utc
        let weekday = ["Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"][Int(date.tm_wday)]
        let month = Self.months[Int(date.tm_mon)]
        return "\(weekday), \(date.tm_mday, width: 2) \(month) \(date.tm_year + 1900, width: 4) \(date.clock) GMT"
    }

    private static let months = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]

    private var utc: tm {
        var seconds = time_t(wholeSeconds)
        var date = tm()
        gmtime_r(&seconds, &date)
        return date
    }

    /// The number of its month in UTC, counted from the year 0.
    package var month: Int {
        let date = utc
        return (Int(date.tm_year) + 1900) * 12 + Int(date.tm_mon)
    }

    /// Parses RFC 3339 (`2026-01-02T03:04:05.678Z`, `2026-01-02 03:04:05+01:00`), a date alone (midnight UTC), or digits
    /// alone, which ``init(secondsOrMilliseconds:)`` interprets. Digits of a second after the sixth are dropped.
    ///
    /// Returns nil for anything else, also for a time without a zone.
    package init?(iso8601 text: String) {
        if let number = Int64(text) {
            self.init(secondsOrMilliseconds: number)
            return
        }
        var scanner = DigitScanner(rest: text.utf8[...])
        guard var seconds = scanner.midnight() else { return nil }
        var fraction: Int64 = 0
        if !scanner.isAtEnd {
            guard let clock = scanner.clock(), let offset = scanner.zone(), scanner.isAtEnd else { return nil }
            seconds += clock.seconds - offset
            fraction = clock.microseconds
        }
        self.init(microseconds: seconds * 1_000_000 + fraction)
    }

    /// Parses what ``httpDate`` writes. The obsolete forms of RFC 9110 give nil.
    package init?(httpDate text: String) {
        let parts = text.split(separator: " ")
        guard parts.count == 6, parts[0].hasSuffix(","), parts[5] == "GMT",
            let month = Self.months.firstIndex(of: String(parts[2]))
        else { return nil }
        self.init(iso8601: "\(parts[3])-\(month + 1, width: 2)-\(parts[1])T\(parts[4])Z")
    }
}

extension tm {
    fileprivate var clock: String { "\(tm_hour, width: 2):\(tm_min, width: 2):\(tm_sec, width: 2)" }
}

/// Consumes the fixed-width fields of RFC 3339.
private struct DigitScanner {
    var rest: Substring.UTF8View

    var isAtEnd: Bool { rest.isEmpty }

    /// A date, as seconds since 1970.
    mutating func midnight() -> Int64? {
        guard let year = number(4), year >= 1, skip("-"), let month = number(2), 1...12 ~= month, skip("-"),
            let day = number(2)
        else { return nil }
        var date = tm()
        date.tm_year = Int32(year - 1900)
        date.tm_mon = Int32(month - 1)
        date.tm_mday = Int32(day)
        let seconds = timegm(&date)
        // A day that the month does not have becomes a day of another month.
        return date.tm_mday == day ? Int64(seconds) : nil
    }

    /// `Thh:mm[:ss[.f…]]`, with `T`, `t` or a space.
    mutating func clock() -> (seconds: Int64, microseconds: Int64)? {
        guard skip("T") || skip("t") || skip(" "), let hour = number(2), hour < 24, skip(":"),
            let minute = number(2), minute < 60
        else { return nil }
        let minutes = Int64(hour * 60 + minute)
        guard skip(":") else { return (minutes * 60, 0) }
        guard let second = number(2), second < 60 else { return nil }
        guard skip(".") else { return (minutes * 60 + Int64(second), 0) }
        return microseconds().map { (minutes * 60 + Int64(second), $0) }
    }

    /// `Z`, `z`, `+hh:mm` or `-hh:mm`, as seconds east of UTC.
    mutating func zone() -> Int64? {
        if skip("Z") || skip("z") { return 0 }
        let isWest = rest.first == UInt8(ascii: "-")
        guard skip("+") || skip("-"), let hour = number(2), hour < 24, skip(":"), let minute = number(2), minute < 60
        else { return nil }
        let offset = Int64(hour * 3_600 + minute * 60)
        return isWest ? -offset : offset
    }

    private mutating func microseconds() -> Int64? {
        let digits = rest.prefix { 0x30...0x39 ~= $0 }
        rest = rest.dropFirst(digits.count)
        return digits.isEmpty ? nil : Int64("\(Substring(digits))00000".prefix(6))
    }

    private mutating func number(_ width: Int) -> Int? {
        let digits = rest.prefix(width)
        guard digits.count == width, digits.allSatisfy({ 0x30...0x39 ~= $0 }) else { return nil }
        rest = rest.dropFirst(width)
        return digits.reduce(0) { $0 * 10 + Int($1 - 0x30) }
    }

    private mutating func skip(_ character: Unicode.Scalar) -> Bool {
        guard let first = rest.first, UInt32(first) == character.value else { return false }
        rest = rest.dropFirst()
        return true
    }
}

extension DefaultStringInterpolation {
    /// A number padded with zeros to `width` digits.
    fileprivate mutating func appendInterpolation(_ number: some BinaryInteger, width: Int) {
        let digits = String(number.magnitude)
        if number < 0 { appendLiteral("-") }
        for _ in 0..<max(0, width - digits.utf8.count) { appendLiteral("0") }
        appendLiteral(digits)
    }
}
