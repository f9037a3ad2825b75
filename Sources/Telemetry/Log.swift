package import Logging

/// Where a part of siwad writes what an operator should know.
///
/// Values never reach the output raw: control characters are escaped, so no input can forge a record.
package struct Log: Sendable {
    /// The swift-log logger behind it, for the packages that want one.
    package let logger: Logger

    /// Wraps a logger that exists.
    package init(_ logger: Logger) {
        self.logger = logger
    }

    /// A log of its own that doesn't touch the process-wide system: for tests and for output elsewhere.
    ///
    /// - Parameter write: takes one whole record, newline included; called on any thread.
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

    /// A log with this label, written as ``bootstrap(level:format:)`` said.
    package init(label: String) {
        self.logger = Logger(label: label)
    }

    /// Sends every record of this process, also those of the packages, to standard error. Call once, before the first
    /// log is made.
    package static func bootstrap(level: LogLevel, format: LogFormat) {
        let output = StandardErrorOutput()
        processThreshold.level = level
        LoggingSystem.bootstrap { label in
            LineLog(label: label, level: processThreshold, format: format) { output.write($0) }
        }
    }

    /// Changes the level of all logs of this process, but for those made quieter than that.
    package static func setLevel(_ level: LogLevel) {
        processThreshold.level = level
    }

    private static let processThreshold = LogThreshold(.info)

    /// The same log that keeps quiet below `level`: for packages whose `info` is our `debug`.
    package func quieter(than level: LogLevel) -> Log {
        var logger = self.logger
        logger.logLevel = max(logger.logLevel, level.loggingLevel)
        return Log(logger)
    }

    /// Detail for whoever hunts a fault.
    package func debug(_ message: @autoclosure () -> String, _ fields: KeyValuePairs<String, String> = [:]) {
        record(.debug, message(), fields)
    }

    /// What an operator may like to know.
    package func info(_ message: @autoclosure () -> String, _ fields: KeyValuePairs<String, String> = [:]) {
        record(.info, message(), fields)
    }

    /// What an operator should know: normal, but rare.
    package func notice(_ message: @autoclosure () -> String, _ fields: KeyValuePairs<String, String> = [:]) {
        record(.notice, message(), fields)
    }

    /// What will become a fault if nobody looks.
    package func warning(_ message: @autoclosure () -> String, _ fields: KeyValuePairs<String, String> = [:]) {
        record(.warning, message(), fields)
    }

    /// What failed.
    package func error(_ message: @autoclosure () -> String, _ fields: KeyValuePairs<String, String> = [:]) {
        record(.error, message(), fields)
    }

    private func record(
        _ level: Logger.Level,
        _ message: @autoclosure () -> String,
        _ fields: KeyValuePairs<String, String>
    ) {
        guard level >= logger.logLevel else { return }
        var metadata: Logger.Metadata = [:]
        for (key, value) in fields {
            metadata[key] = .string(value)
        }
        logger.log(level: level, "\(message())", metadata: metadata)
    }
}
