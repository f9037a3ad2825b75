import Glibc

/// A moment in UTC, for log records only; Apple's and PostgreSQL's times have a type of their own.
struct UTCTime {
    /// Since 1970-01-01T00:00:00Z.
    let milliseconds: Int64

    /// The wall clock.
    static func now() -> UTCTime {
        var time = timespec()
        clock_gettime(CLOCK_REALTIME, &time)
        return UTCTime(milliseconds: Int64(time.tv_sec) * 1000 + Int64(time.tv_nsec) / 1_000_000)
    }

    /// `2026-01-02T03:04:05.678Z`.
    var text: String {
        let (days, ofDay) = milliseconds.flooredDivision(by: 86_400_000)
        // Civil date from a day number, by Howard Hinnant's algorithm: eras of 400 years that start on 1 March.
        let (era, dayOfEra) = (days + 719_468).flooredDivision(by: 146_097)
        let yearOfEra = (dayOfEra - dayOfEra / 1460 + dayOfEra / 36_524 - dayOfEra / 146_096) / 365
        let dayOfYear = dayOfEra - (365 * yearOfEra + yearOfEra / 4 - yearOfEra / 100)
        let shiftedMonth = (5 * dayOfYear + 2) / 153
        let day = dayOfYear - (153 * shiftedMonth + 2) / 5 + 1
        let month = shiftedMonth < 10 ? shiftedMonth + 3 : shiftedMonth - 9
        let year = yearOfEra + era * 400 + (month <= 2 ? 1 : 0)
        let date = "\(year.padded(4))-\(month.padded(2))-\(day.padded(2))"
        let hours = (ofDay / 3_600_000).padded(2)
        let minutes = (ofDay / 60_000 % 60).padded(2)
        let seconds = (ofDay / 1000 % 60).padded(2)
        return "\(date)T\(hours):\(minutes):\(seconds).\((ofDay % 1000).padded(3))Z"
    }
}

extension Int64 {
    fileprivate func flooredDivision(by divisor: Int64) -> (quotient: Int64, remainder: Int64) {
        let quotient = self >= 0 ? self / divisor : (self - divisor + 1) / divisor
        return (quotient, self - quotient * divisor)
    }

    fileprivate func padded(_ width: Int) -> String {
        let digits = String(self)
        return String(repeating: "0", count: Swift.max(0, width - digits.count)) + digits
    }
}
