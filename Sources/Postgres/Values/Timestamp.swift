/// A `timestamptz`: a point in time with microseconds, or one of PostgreSQL's two infinities.
package struct Timestamp: Sendable, Hashable, Comparable {
    /// Microseconds since 1970-01-01T00:00:00Z; the extreme values represent the infinities.
    package var microseconds: Int64

    package init(microseconds: Int64) {
        self.microseconds = microseconds
    }

    package static let infinity = Timestamp(microseconds: .max)
    package static let negativeInfinity = Timestamp(microseconds: .min)

    package var isFinite: Bool { self != .infinity && self != .negativeInfinity }

    package static func < (earlier: Timestamp, later: Timestamp) -> Bool {
        earlier.microseconds < later.microseconds
    }

    /// 2000-01-01T00:00:00Z, the zero of PostgreSQL's binary form, in microseconds since 1970.
    private static let serverEpoch: Int64 = 946_684_800_000_000

    /// The server's binary form. A time too early for 64 bits becomes one that the server refuses as out of range.
    var serverValue: Int64 {
        guard isFinite else { return microseconds }
        let (value, overflow) = microseconds.subtractingReportingOverflow(Self.serverEpoch)
        return overflow ? .min + 1 : value
    }

    init(serverValue: Int64) {
        guard serverValue != .max, serverValue != .min else {
            self.microseconds = serverValue
            return
        }
        let (value, overflow) = serverValue.addingReportingOverflow(Self.serverEpoch)
        self.microseconds = overflow ? .max - 1 : value
    }
}
