import Basics
import Logging

/// swift-log's back end: renders each event as one line and hands it on.
struct LineLog: LogHandler {
    /// The name in each record.
    let label: String
    /// The shape of a record.
    let format: LogFormat
    /// Takes a whole record, newline included.
    let write: @Sendable ([UInt8]) -> Void
    /// The level unless this log has one of its own.
    private let level: LogThreshold
    private var ownLevel: Logger.Level?
    var metadata: Logger.Metadata = [:]
    var metadataProvider: Logger.MetadataProvider?

    init(label: String, level: LogThreshold, format: LogFormat, write: @escaping @Sendable ([UInt8]) -> Void) {
        self.label = label
        self.level = level
        self.format = format
        self.write = write
    }

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
