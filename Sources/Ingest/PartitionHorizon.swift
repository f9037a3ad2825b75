import AccountStore
import AppleTokens

/// Which months of notifications are known to have their partition, so that the database is asked only for others.
struct PartitionHorizon {
    /// A stretch of time whose months are to be created.
    struct Stretch: Sendable, Equatable {
        let from: WallTime
        let through: WallTime
    }

    /// Within so many days lies no month but those of both ends.
    private static let bridge = Duration.seconds(28 * 86_400)
    /// Ahead as well, so that the next month begins with its partition in place.
    private static let ahead = Duration.seconds(32 * 86_400)

    private var known: Stretch?

    /// Whether nothing is known.
    var isEmpty: Bool { known == nil }

    /// What to create before a batch is recorded; empty when nothing is missing.
    ///
    /// Times far from each other are stretches of their own: one old notification must not ask for all the years since.
    func missing(for batch: [Submission]) -> [Stretch] {
        missing(
            for: batch.lazy.compactMap { submission in
                guard case .notification(let received) = submission.work else { return nil }
                return received.notification.issuedAt
            }
        )
    }

    /// What to create before notifications of these times of issue are recorded; empty when nothing is missing.
    func missing(for issued: some Sequence<WallTime>) -> [Stretch] {
        var times: [WallTime] = []
        for issued in issued {
            if let known, known.from <= issued, issued <= known.through { continue }
            times.append(issued)
        }
        guard !times.isEmpty else { return [] }
        times.sort()
        var stretches: [Stretch] = []
        for time in times {
            if let last = stretches.last, time <= last.through + Self.bridge {
                stretches[stretches.count - 1] = Stretch(from: last.from, through: time)
            } else {
                stretches.append(Stretch(from: time, through: time))
            }
        }
        let last = stretches.removeLast()
        stretches.append(Stretch(from: last.from, through: last.through + Self.ahead))
        return stretches
    }

    /// These exist now. Only the stretch around the present is remembered: an old notification is rare.
    mutating func ensured(_ stretches: [Stretch]) {
        guard let latest = stretches.last else { return }
        guard let known else {
            self.known = latest
            return
        }
        guard latest.through > known.through else { return }
        let touches = latest.from <= known.through + Self.bridge
        self.known = touches ? Stretch(from: min(known.from, latest.from), through: latest.through) : latest
    }

    /// Somebody dropped partitions.
    mutating func forget() {
        known = nil
    }
}
