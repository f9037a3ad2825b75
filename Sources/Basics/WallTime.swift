import Glibc

/// A point in time in microseconds since 1970-01-01T00:00:00Z, the resolution of PostgreSQL's `timestamptz`. Leap seconds
/// are not counted.
///
/// Arithmetic saturates at the ends of the range, because a signed claim can hold any number and must never trap.
package struct WallTime: Sendable, Hashable {
    package var microseconds: Int64

    package init(microseconds: Int64) {
        self.microseconds = microseconds
    }

    package init(milliseconds: Int64) {
        self.microseconds = milliseconds.multipliedSaturating(by: 1_000)
    }

    package init(seconds: Int64) {
        self.microseconds = seconds.multipliedSaturating(by: 1_000_000)
    }

    /// A number of seconds since 1970, or of milliseconds from 100,000,000,000 on: as seconds that would be the year
    /// 5138, as milliseconds it is March 1973. Apple sends `event_time` in milliseconds and documents seconds.
    package init(secondsOrMilliseconds number: Int64) {
        self = number.magnitude < 100_000_000_000 ? WallTime(seconds: number) : WallTime(milliseconds: number)
    }

    package static func now() -> WallTime {
        var now = timespec()
        clock_gettime(CLOCK_REALTIME, &now)
        return WallTime(microseconds: Int64(now.tv_sec) * 1_000_000 + Int64(now.tv_nsec) / 1_000)
    }

    /// Whole seconds since 1970, rounded down.
    package var wholeSeconds: Int64 {
        microseconds.flooredQuotient(dividingBy: 1_000_000)
    }

    /// Whole milliseconds since 1970, rounded down.
    package var wholeMilliseconds: Int64 {
        microseconds.flooredQuotient(dividingBy: 1_000)
    }

    /// The time from `earlier` to this time; negative if `earlier` is later.
    package func duration(since earlier: WallTime) -> Duration {
        let (difference, overflow) = microseconds.subtractingReportingOverflow(earlier.microseconds)
        return .microseconds(overflow ? (microseconds < 0 ? .min : .max) : difference)
    }

    package static func + (time: WallTime, duration: Duration) -> WallTime {
        WallTime(microseconds: time.microseconds.addingSaturating(duration.wholeMicroseconds))
    }

    package static func - (time: WallTime, duration: Duration) -> WallTime {
        // Negating Int64.min traps; the next number differs by one microsecond in 292,000 years.
        let negated = -max(duration.wholeMicroseconds, -Int64.max)
        return WallTime(microseconds: time.microseconds.addingSaturating(negated))
    }
}

extension WallTime: Comparable, CustomStringConvertible {
    package static func < (lhs: WallTime, rhs: WallTime) -> Bool {
        lhs.microseconds < rhs.microseconds
    }

    package var description: String { iso8601 }
}

extension Duration {
    fileprivate var wholeMicroseconds: Int64 {
        let (seconds, attoseconds) = components
        return seconds.multipliedSaturating(by: 1_000_000).addingSaturating(attoseconds / 1_000_000_000_000)
    }
}

extension Int64 {
    fileprivate func multipliedSaturating(by factor: Int64) -> Int64 {
        let (product, overflow) = multipliedReportingOverflow(by: factor)
        guard overflow else { return product }
        return (self < 0) == (factor < 0) ? .max : .min
    }

    fileprivate func addingSaturating(_ other: Int64) -> Int64 {
        let (sum, overflow) = addingReportingOverflow(other)
        guard overflow else { return sum }
        return other < 0 ? .min : .max
    }

    /// The quotient rounded down, also for negative numbers; `divisor` must be positive.
    func flooredQuotient(dividingBy divisor: Int64) -> Int64 {
        let (quotient, remainder) = quotientAndRemainder(dividingBy: divisor)
        return remainder < 0 ? quotient - 1 : quotient
    }
}
