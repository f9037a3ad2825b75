extension WallTime {
    /// RFC 3339 in UTC, such as `2026-01-02T03:04:05.678Z`: three digits of a second, or six where microseconds need
    /// them. Reading it again gives the same time, in the years 1 to 9999.
    ///
    /// Others come from databases, and from claims: the years have as many digits as they need, and the ends of the range
    /// are `-infinity` and `infinity`, as PostgreSQL writes them.
    package var iso8601: String {
        switch microseconds {
        case .min: return "-infinity"
        case .max: return "infinity"
        default: break
        }
        let seconds = wholeSeconds
        // Not what `seconds` leaves of it: before the first whole second of the range that can't be multiplied back.
        let remainder = Int(microseconds % 1_000_000)
        let fraction = remainder < 0 ? remainder + 1_000_000 : remainder
        let days = seconds.flooredQuotient(dividingBy: 86_400)
        let second = Int(seconds - days * 86_400)
        let (year, month, day) = CalendarDay.date(daysSince1970: Int(days))
        let clock = "\(second / 3_600, width: 2):\(second / 60 % 60, width: 2):\(second % 60, width: 2)"
        let subsecond: String =
            fraction % 1_000 == 0 ? "\(fraction / 1_000, width: 3)" : "\(fraction, width: 6)"
        return "\(year, width: 4)-\(month, width: 2)-\(day, width: 2)T\(clock).\(subsecond)Z"
    }

    /// Reads what a person or another program writes for a time: RFC 3339 (`2026-01-02T03:04:05.678Z`,
    /// `2026-01-02 03:04:05+01:00`), a date alone (midnight UTC), or digits alone, which are seconds or milliseconds
    /// since 1970 by ``init(secondsOrMilliseconds:)``. Digits of a second beyond the sixth are dropped.
    ///
    /// nil for anything else; a time without a zone is refused rather than guessed.
    package init?(iso8601 text: String) {
        if let number = Int64(text) {
            self.init(secondsOrMilliseconds: number)
            return
        }
        var scanner = DigitScanner(text.utf8)
        guard let date = scanner.date() else { return nil }
        var seconds = Int64(CalendarDay.daysSince1970(year: date.year, month: date.month, day: date.day)) * 86_400
        var fraction: Int64 = 0
        if !scanner.isAtEnd {
            guard let clock = scanner.clock(), let offset = scanner.zone(), scanner.isAtEnd else { return nil }
            seconds += clock.seconds - offset
            fraction = clock.microseconds
        }
        self.init(microseconds: seconds * 1_000_000 + fraction)
    }

    /// A number of seconds since 1970, or of milliseconds from 100,000,000,000 on: as seconds that would be the year
    /// 5138, as milliseconds it is March 1973. Apple sends `event_time` in milliseconds and documents seconds.
    package init(secondsOrMilliseconds number: Int64) {
        self = number.magnitude < 100_000_000_000 ? WallTime(seconds: number) : WallTime(milliseconds: number)
    }
}

/// The proleptic Gregorian calendar, by day numbers (Howard Hinnant's `civil_from_days`): no time zone database and no
/// Foundation needed for UTC.
enum CalendarDay {
    /// Days from 1970-01-01 to the given day.
    static func daysSince1970(year: Int, month: Int, day: Int) -> Int {
        let shifted = month <= 2 ? year - 1 : year
        let era = (shifted >= 0 ? shifted : shifted - 399) / 400
        let yearOfEra = shifted - era * 400
        let dayOfYear = (153 * (month + (month > 2 ? -3 : 9)) + 2) / 5 + day - 1
        let dayOfEra = yearOfEra * 365 + yearOfEra / 4 - yearOfEra / 100 + dayOfYear
        return era * 146_097 + dayOfEra - 719_468
    }

    /// The day so many days after 1970-01-01.
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

    /// How many days a month has.
    static func days(inMonth month: Int, of year: Int) -> Int {
        switch month {
        case 2: year % 4 == 0 && (year % 100 != 0 || year % 400 == 0) ? 29 : 28
        case 4, 6, 9, 11: 30
        default: 31
        }
    }
}

/// Reads the fixed-width fields of RFC 3339 from the front of a text.
private struct DigitScanner {
    private var rest: Substring.UTF8View

    init(_ text: String.UTF8View) {
        self.rest = text[...]
    }

    var isAtEnd: Bool { rest.isEmpty }

    mutating func date() -> (year: Int, month: Int, day: Int)? {
        guard let year = number(4), year >= 1, skip("-"), let month = number(2), 1...12 ~= month, skip("-"),
            let day = number(2), day >= 1, day <= CalendarDay.days(inMonth: month, of: year)
        else { return nil }
        return (year, month, day)
    }

    /// `Thh:mm[:ss[.f…]]`, where a space or `t` may stand for `T`.
    mutating func clock() -> (seconds: Int64, microseconds: Int64)? {
        guard skip("T") || skip("t") || skip(" "), let hour = number(2), hour < 24, skip(":"),
            let minute = number(2), minute < 60
        else { return nil }
        var second = 0
        var fraction = 0
        if skip(":") {
            guard let whole = number(2), whole < 60 else { return nil }
            second = whole
            if skip(".") {
                guard let digits = microseconds() else { return nil }
                fraction = digits
            }
        }
        return (Int64(hour * 3_600 + minute * 60 + second), Int64(fraction))
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

    private mutating func microseconds() -> Int? {
        let digits = rest.prefix { 0x30...0x39 ~= $0 }
        guard !digits.isEmpty else { return nil }
        rest = rest.dropFirst(digits.count)
        let kept = digits.prefix(6)
        let value = kept.reduce(0) { $0 * 10 + Int($1 - 0x30) }
        return (kept.count..<6).reduce(value) { value, _ in value * 10 }
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
    /// A number with zeros in front up to `width` digits.
    fileprivate mutating func appendInterpolation(_ number: Int, width: Int) {
        let digits = String(number.magnitude)
        if number < 0 { appendLiteral("-") }
        appendLiteral(String(repeating: "0", count: max(0, width - digits.count)))
        appendLiteral(digits)
    }
}
