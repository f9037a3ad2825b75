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
        let seconds = wholeSeconds
        // Subtracting `seconds` would overflow before the first whole second of the range.
        let remainder = Int(microseconds % 1_000_000)
        let fraction = remainder < 0 ? remainder + 1_000_000 : remainder
        let days = seconds.flooredQuotient(dividingBy: 86_400)
        let second = Int(seconds - days * 86_400)
        let (year, month, day) = CalendarDay.date(daysSince1970: Int(days))
        let clock = "\(second / 3_600, width: 2):\(second / 60 % 60, width: 2):\(second % 60, width: 2)"
        let subsecond: String = fraction % 1_000 == 0 ? "\(fraction / 1_000, width: 3)" : "\(fraction, width: 6)"
        return "\(year, width: 4)-\(month, width: 2)-\(day, width: 2)T\(clock).\(subsecond)Z"
    }

    /// The number of its month in UTC, counted from the year 0.
    package var month: Int {
        let date = CalendarDay.date(daysSince1970: Int(wholeSeconds.flooredQuotient(dividingBy: 86_400)))
        return date.year * 12 + date.month
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
        var scanner = DigitScanner(text.utf8)
        guard let days = scanner.daysSince1970() else { return nil }
        var seconds = Int64(days) * 86_400
        var fraction: Int64 = 0
        if !scanner.isAtEnd {
            guard let clock = scanner.clock(), let offset = scanner.zone(), scanner.isAtEnd else { return nil }
            seconds += clock.seconds - offset
            fraction = clock.microseconds
        }
        self.init(microseconds: seconds * 1_000_000 + fraction)
    }

    /// Parses the time in an HTTP header, `Sun, 06 Nov 1994 08:49:37 GMT` (IMF-fixdate, RFC 9110 §5.6.7). The obsolete
    /// forms give nil.
    package init?(httpDate text: String) {
        let months = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]
        let parts = text.split(separator: " ")
        guard parts.count == 6, parts[0].hasSuffix(","), parts[5] == "GMT",
            let month = months.firstIndex(of: String(parts[2]))
        else { return nil }
        self.init(iso8601: "\(parts[3])-\(month + 1, width: 2)-\(parts[1])T\(parts[4])Z")
    }
}

/// The proleptic Gregorian calendar by day numbers (Howard Hinnant's `civil_from_days`). UTC needs neither a time zone
/// database nor Foundation.
private enum CalendarDay {
    static func daysSince1970(year: Int, month: Int, day: Int) -> Int {
        let shifted = month <= 2 ? year - 1 : year
        let era = (shifted >= 0 ? shifted : shifted - 399) / 400
        let yearOfEra = shifted - era * 400
        let dayOfYear = (153 * (month + (month > 2 ? -3 : 9)) + 2) / 5 + day - 1
        let dayOfEra = yearOfEra * 365 + yearOfEra / 4 - yearOfEra / 100 + dayOfYear
        return era * 146_097 + dayOfEra - 719_468
    }

    static func date(daysSince1970: Int) -> (year: Int, month: Int, day: Int) {
        let days = daysSince1970 + 719_468
        let era = (days >= 0 ? days : days - 146_096) / 146_097
        let dayOfEra = days - era * 146_097
        let yearOfEra = (dayOfEra - dayOfEra / 1_460 + dayOfEra / 36_524 - dayOfEra / 146_096) / 365
        let dayOfYear = dayOfEra - (365 * yearOfEra + yearOfEra / 4 - yearOfEra / 100)
        let monthFromMarch = (5 * dayOfYear + 2) / 153
        let month = monthFromMarch < 10 ? monthFromMarch + 3 : monthFromMarch - 9
        let year = yearOfEra + era * 400 + (month <= 2 ? 1 : 0)
        return (year, month, dayOfYear - (153 * monthFromMarch + 2) / 5 + 1)
    }
}

/// Consumes the fixed-width fields of RFC 3339.
private struct DigitScanner {
    private var rest: Substring.UTF8View

    init(_ text: String.UTF8View) {
        self.rest = text[...]
    }

    var isAtEnd: Bool { rest.isEmpty }

    mutating func daysSince1970() -> Int? {
        guard let year = number(4), year >= 1, skip("-"), let month = number(2), 1...12 ~= month, skip("-"),
            let day = number(2)
        else { return nil }
        // A day that the month does not have becomes a day of another month.
        let days = CalendarDay.daysSince1970(year: year, month: month, day: day)
        return CalendarDay.date(daysSince1970: days) == (year, month, day) ? days : nil
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
    fileprivate mutating func appendInterpolation(_ number: Int, width: Int) {
        let digits = String(number.magnitude)
        if number < 0 { appendLiteral("-") }
        appendLiteral(String(repeating: "0", count: max(0, width - digits.count)))
        appendLiteral(digits)
    }
}
