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
        Self.escape(message, into: &line) { "\\u{\(String($0, radix: 16))}" }
        for (key, value) in fields {
            line.append(" ")
            Self.escape(key, into: &line) { "\\u{\(String($0, radix: 16))}" }
            line.append("=")
            let plain = value.unicodeScalars.allSatisfy { $0 != " " && $0 != "=" && $0 != "\"" }
            if plain, !value.isEmpty {
                Self.escape(value, into: &line) { "\\u{\(String($0, radix: 16))}" }
            } else {
                line.append("\"")
                Self.escape(value, quote: true, into: &line) { "\\u{\(String($0, radix: 16))}" }
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
        line.append(line.utf8.count == 1 ? "\"" : ",\"")
        Self.escape(key, quote: true, into: &line, Self.jsonEscape)
        line.append("\":\"")
        Self.escape(value, quote: true, into: &line, Self.jsonEscape)
        line.append("\"")
    }

    /// None of the scalars that are escaped lies beyond the basic plane, so four digits are enough.
    private static func jsonEscape(_ scalar: UInt32) -> String {
        let digits = String(scalar, radix: 16)
        return "\\u" + String(repeating: "0", count: 4 - digits.count) + digits
    }

    private static func escape(
        _ text: String,
        quote: Bool = false,
        into line: inout String,
        _ hidden: (UInt32) -> String
    ) {
        var length = 0
        for scalar in text.unicodeScalars {
            length += 1
            if length > longestText {
                line.append("…")
                return
            }
            switch scalar {
            case "\n": line.append("\\n")
            case "\r": line.append("\\r")
            case "\t": line.append("\\t")
            case "\\": line.append("\\\\")
            case "\"" where quote: line.append("\\\"")
            default:
                if isHidden(scalar.value) {
                    line.append(hidden(scalar.value))
                } else {
                    line.unicodeScalars.append(scalar)
                }
            }
        }
    }

    /// Control characters, other line ends, and marks that reorder what a terminal shows.
    private static func isHidden(_ scalar: UInt32) -> Bool {
        switch scalar {
        case 0..<0x20, 0x7F..<0xA0, 0x2028...0x202E, 0x2066...0x2069, 0x200E, 0x200F, 0xFEFF: true
        default: false
        }
    }
}
