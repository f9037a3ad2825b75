import AppleNotifications
import ArgumentParser

/// A point in time on the command line: `2026-01-02T03:04:05Z`, `2026-01-02`, or seconds or milliseconds since 1970.
struct TimeArgument: ExpressibleByArgument {
    /// The time.
    let time: WallTime

    /// Reads it.
    init?(argument: String) {
        guard let time = WallTime(iso8601: argument) else { return nil }
        self.time = time
    }
}
