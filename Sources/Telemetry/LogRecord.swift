import Basics

/// One record of the log and its two spellings.
struct LogRecord {
    /// The longest text that a record repeats, in Unicode scalars; what is longer is cut and marked.
    static let longestText = 4096

    /// ISO 8601, UTC.
    let time: String
    let level: String
    let label: String
    let message: String
    /// Sorted by key.
    let fields: [(key: String, value: String)]

    /// The record as bytes, with the newline that ends it and no other.
    func line(_ format: LogFormat) -> [UInt8] {
        var line =
            switch format {
            case .text: text
            case .json: json
            }
        line.append("\n")
        return Array(line.utf8)
    }

    private var text: String {
        var line = "\(time) \(level) \(label): "
        Self.escape(message, into: &line)
        for (key, value) in fields {
            line.append(" ")
            Self.escape(key, into: &line)
            line.append("=")
            let plain = value.unicodeScalars.allSatisfy { $0 != " " && $0 != "=" && $0 != "\"" }
            if plain, !value.isEmpty {
                Self.escape(value, into: &line)
            } else {
                line.append("\"")
                Self.escape(value, quote: true, into: &line)
                line.append("\"")
            }
        }
        return line
    }

    private var json: String {
        var line = "{"
        append("time", time, to: &line)
        append("level", level, to: &line)
        append("logger", label, to: &line)
        append("message", message, to: &line)
        for (key, value) in fields {
            append(Self.ownKeys.contains(key) ? key + "_" : key, value, to: &line)
        }
        line.append("}")
        return line
    }

    private static let ownKeys: Set<String> = ["time", "level", "logger", "message"]

    private func append(_ key: String, _ value: String, to line: inout String) {
        if line.utf8.count > 1 { line.append(",") }
        line.appendJSON(Self.shortened(key), escapingInvisible: true)
        line.append(":")
        line.appendJSON(Self.shortened(value), escapingInvisible: true)
    }

    private static func escape(_ text: String, quote: Bool = false, into line: inout String) {
        for scalar in shortened(text).unicodeScalars {
            switch scalar {
            case "\n": line.append("\\n")
            case "\r": line.append("\\r")
            case "\t": line.append("\\t")
            case "\\": line.append("\\\\")
            case "\"" where quote: line.append("\\\"")
            default:
                if scalar.isInvisible {
                    line.append("\\u{\(String(scalar.value, radix: 16))}")
                } else {
                    line.unicodeScalars.append(scalar)
                }
            }
        }
    }

    private static func shortened(_ text: String) -> String {
        let scalars = text.unicodeScalars
        guard let end = scalars.index(scalars.startIndex, offsetBy: longestText, limitedBy: scalars.endIndex),
            end < scalars.endIndex
        else { return text }
        return text[..<end] + "…"
    }
}
