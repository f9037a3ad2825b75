#if canImport(Glibc)
    import Glibc
#elseif canImport(Musl)
    import Musl
#elseif canImport(Darwin)
    import Darwin
#endif

/// A point in time in microseconds since 1970-01-01T00:00:00Z, the resolution of PostgreSQL's `timestamptz`.
///
/// Arithmetic saturates at the ends of the range: a claim that Apple signed can hold any number and must never trap.
package struct WallTime: Sendable, Hashable {
    /// Microseconds since 1970-01-01T00:00:00Z, leap seconds not counted; negative before that.
    package var microseconds: Int64

    /// The time so many microseconds after 1970-01-01T00:00:00Z.
    package init(microseconds: Int64) {
        self.microseconds = microseconds
    }

    /// The time so many milliseconds after 1970-01-01T00:00:00Z.
    package init(milliseconds: Int64) {
        self.microseconds = milliseconds.multipliedSaturating(by: 1_000)
    }

    /// The time so many seconds after 1970-01-01T00:00:00Z.
    package init(seconds: Int64) {
        self.microseconds = seconds.multipliedSaturating(by: 1_000_000)
    }

    /// The operating system's idea of the present. Nothing in this target asks for it: callers pass the time in.
    package static func now() -> WallTime {
        var now = timespec()
        clock_gettime(CLOCK_REALTIME, &now)
        return WallTime(microseconds: Int64(now.tv_sec) * 1_000_000 + Int64(now.tv_nsec) / 1_000)
    }

    /// Whole seconds since 1970-01-01T00:00:00Z, rounded down.
    package var wholeSeconds: Int64 {
        microseconds.flooredQuotient(dividingBy: 1_000_000)
    }

    /// Whole milliseconds since 1970-01-01T00:00:00Z, rounded down.
    package var wholeMilliseconds: Int64 {
        microseconds.flooredQuotient(dividingBy: 1_000)
    }

    /// How long after `earlier` this is; negative when it is before.
    package func duration(since earlier: WallTime) -> Duration {
        let (difference, overflow) = microseconds.subtractingReportingOverflow(earlier.microseconds)
        return .microseconds(overflow ? (microseconds < 0 ? .min : .max) : difference)
    }

    /// The time so much later.
    package static func + (time: WallTime, duration: Duration) -> WallTime {
        WallTime(microseconds: time.microseconds.addingSaturating(duration.wholeMicroseconds))
    }

    /// The time so much earlier.
    package static func - (time: WallTime, duration: Duration) -> WallTime {
        // Negating the smallest number would trap; its neighbour differs by a microsecond in 292,000 years.
        let negated = -max(duration.wholeMicroseconds, -Int64.max)
        return WallTime(microseconds: time.microseconds.addingSaturating(negated))
    }
}

extension WallTime: Comparable {
    /// Earlier comes first.
    package static func < (lhs: WallTime, rhs: WallTime) -> Bool {
        lhs.microseconds < rhs.microseconds
    }
}

extension WallTime: CustomStringConvertible {
    /// The same as ``iso8601``.
    package var description: String { iso8601 }
}

extension Duration {
    /// Microseconds, rounded towards zero and held within the range of the type.
    var wholeMicroseconds: Int64 {
        let (seconds, attoseconds) = components
        return seconds.multipliedSaturating(by: 1_000_000).addingSaturating(attoseconds / 1_000_000_000_000)
    }
}

extension Int64 {
    /// The product, or the end of the range that it lies beyond.
    func multipliedSaturating(by factor: Int64) -> Int64 {
        let (product, overflow) = multipliedReportingOverflow(by: factor)
        guard overflow else { return product }
        return (self < 0) == (factor < 0) ? .max : .min
    }

    /// The sum, or the end of the range that it lies beyond.
    func addingSaturating(_ other: Int64) -> Int64 {
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
