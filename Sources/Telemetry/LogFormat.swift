/// The shape of a log record. Each record is one line in either.
package enum LogFormat: String, Sendable, CaseIterable {
    /// `2026-01-02T03:04:05.678Z info siwad: message key=value`, for people.
    case text
    /// One JSON object a line, for log collectors.
    case json
}
