import Basics
package import Logging
import Synchronization

/// The shape of a log record. Each record is one line.
package enum LogFormat: String, Sendable, CaseIterable {
    /// `2026-01-02T03:04:05.678Z info siwad: message key=value`, for people.
    case text
    /// One JSON object per line, for log collectors.
    case json
}

/// The raw values are the names in the configuration and in swift-log.
package enum LogLevel: String, Sendable, CaseIterable {
    case trace, debug, info, notice, warning, error, critical

    var loggingLevel: Logger.Level {
        guard let level = Logger.Level(rawValue: rawValue) else { preconditionFailure("\(rawValue) is not a level") }
        return level
    }
}

/// Writes records for operators.
///
/// Control characters in values are escaped, so that no input can forge a record.
package struct Log: Sendable {
    /// For the packages that take a logger of swift-log.
    package let logger: Logger

    package init(_ logger: Logger) {
        self.logger = logger
    }

    /// A log that is independent of the process-wide logging system: for tests and for output elsewhere.
    ///
    /// - Parameter write: takes one whole record with its newline; called on any thread.
    package init(
        label: String,
        level: LogLevel,
        format: LogFormat,
        write: @escaping @Sendable ([UInt8]) -> Void
    ) {
        self.logger = Logger(label: label) { label in
            LineLog(label: label, level: LogThreshold(level), format: format, write: write)
        }
    }

    /// A log of the process, as ``bootstrap(level:format:)`` configured it.
    package init(label: String) {
        self.logger = Logger(label: label)
    }

    /// Sends all records of this process, also from the packages, to standard error. Call it once, before making
    /// the first log.
    package static func bootstrap(level: LogLevel, format: LogFormat) {
        let output = StandardErrorOutput()
        processThreshold.level = level
        LoggingSystem.bootstrap { label in
            LineLog(label: label, level: processThreshold, format: format) { output.write($0) }
        }
    }

    /// Changes the level of all logs of this process, except those made by ``quieter(than:)``.
    package static func setLevel(_ level: LogLevel) {
        processThreshold.level = level
    }

    private static let processThreshold = LogThreshold(.info)

    /// The same log without records below `level`: for packages whose `info` is our `debug`.
    package func quieter(than level: LogLevel) -> Log {
        var logger = self.logger
        logger.logLevel = max(logger.logLevel, level.loggingLevel)
        return Log(logger)
    }

    /// Details for finding a fault.
    package func debug(_ message: @autoclosure () -> String, _ fields: KeyValuePairs<String, String> = [:]) {
        record(.debug, message, fields)
    }

    package func info(_ message: @autoclosure () -> String, _ fields: KeyValuePairs<String, String> = [:]) {
        record(.info, message, fields)
    }

    /// Normal but rare, and of interest to an operator.
    package func notice(_ message: @autoclosure () -> String, _ fields: KeyValuePairs<String, String> = [:]) {
        record(.notice, message, fields)
    }

    /// Becomes a fault if no operator acts.
    package func warning(_ message: @autoclosure () -> String, _ fields: KeyValuePairs<String, String> = [:]) {
        record(.warning, message, fields)
    }

    package func error(_ message: @autoclosure () -> String, _ fields: KeyValuePairs<String, String> = [:]) {
        record(.error, message, fields)
    }

    private func record(_ level: Logger.Level, _ message: () -> String, _ fields: KeyValuePairs<String, String>) {
        guard level >= logger.logLevel else { return }
        var metadata: Logger.Metadata = [:]
        for (key, value) in fields {
            metadata[key] = .string(value)
        }
        logger.log(level: level, "\(message())", metadata: metadata)
    }
}

/// The lowest level that is written, shared by several logs. It can change while they are in use.
final class LogThreshold: Sendable {
    private let state: Mutex<LogLevel>

    init(_ level: LogLevel) {
        state = Mutex(level)
    }

    var level: LogLevel {
        get { state.withLock { $0 } }
        set { state.withLock { $0 = newValue } }
    }
}

/// The back end of swift-log: renders each event as one line.
struct LineLog: LogHandler {
    let label: String
    let level: LogThreshold
    let format: LogFormat
    var metadata: Logger.Metadata = [:]
    var metadataProvider: Logger.MetadataProvider?
    /// Overrides the shared level.
    var ownLevel: Logger.Level?
    /// Takes a whole record with its newline.
    let write: @Sendable ([UInt8]) -> Void

    var logLevel: Logger.Level {
        get { ownLevel ?? level.level.loggingLevel }
        set { ownLevel = newValue }
    }

    subscript(metadataKey key: String) -> Logger.Metadata.Value? {
        get { metadata[key] }
        set { metadata[key] = newValue }
    }

    func log(event: LogEvent) {
        var fields = metadata
        if let provided = metadataProvider?.get() {
            fields.merge(provided) { $1 }
        }
        if let own = event.metadata {
            fields.merge(own) { $1 }
        }
        if let error = event.error {
            fields["error"] = .string("\(error)")
        }
        let record = LogRecord(
            time: WallTime(milliseconds: WallTime.now().wholeMilliseconds).iso8601,
            level: event.level.rawValue,
            label: label,
            message: event.message.description,
            fields: fields.map { ($0.key, $0.value.description) }.sorted { $0.0 < $1.0 }
        )
        write(record.line(format))
    }
}
