import AppleTokens
import ArgumentParser

/// A point in time on the command line: `2026-01-02T03:04:05Z`, `2026-01-02`, or seconds or milliseconds since 1970.
///
/// A time without a zone is in UTC, like those in the tables that it is copied from.
struct TimeArgument: Sendable {
    /// The time.
    let time: WallTime

    /// Reads it.
    /// - Throws: `ValidationError` that says what is accepted.
    init(parsing text: String) throws {
        guard let time = WallTime(iso8601: text) ?? WallTime(iso8601: text + "Z") else {
            throw ValidationError(
                "write 2026-01-02, 2026-01-02 03:04 or 2026-01-02T03:04:05Z, in UTC unless it ends in a zone such as "
                    + "+01:00, or seconds since 1970"
            )
        }
        self.time = time
    }

    /// The help of an option that takes one.
    static func help(_ meaning: String, otherwise: String? = nil) -> ArgumentHelp {
        let form = "2026-01-02, or '2026-01-02 03:04' in UTC, or with a zone"
        return ArgumentHelp("\(meaning): \(form)\(otherwise.map { "; \($0) if left out" } ?? "").", valueName: "time")
    }
}
