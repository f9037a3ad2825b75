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
        let line =
            switch format {
            case .text: text
            case .json: json
            }
        return Array("\(line)\n".utf8)
    }

    private var text: String {
        var line = "\(time) \(level) \(label): \(Self.escaped(message))"
        for (key, value) in fields {
            let isPlain = !value.isEmpty && value.unicodeScalars.allSatisfy { $0 != " " && $0 != "=" && $0 != "\"" }
            let written = isPlain ? Self.escaped(value) : "\"\(Self.escaped(value, quote: true))\""
            line += " \(Self.escaped(key))=\(written)"
        }
        return line
    }

    private var json: String {
        let own = [("time", time), ("level", level), ("logger", label), ("message", message)]
        let others = fields.map { field in
            (own.contains { $0.0 == field.key } ? field.key + "_" : field.key, field.value)
        }
        var line = ""
        for (key, value) in own + others {
            line.append(line.isEmpty ? "{" : ",")
            line.appendJSON(Self.shortened(key), escapingInvisible: true)
            line.append(":")
            line.appendJSON(Self.shortened(value), escapingInvisible: true)
        }
        return line + "}"
    }

    private static func escaped(_ text: String, quote: Bool = false) -> String {
        var escaped = ""
        for scalar in shortened(text).unicodeScalars {
            switch scalar {
            case "\n": escaped += "\\n"
            case "\r": escaped += "\\r"
            case "\t": escaped += "\\t"
            case "\\": escaped += "\\\\"
            case "\"" where quote: escaped += "\\\""
            case _ where scalar.isInvisible: escaped += "\\u{\(String(scalar.value, radix: 16))}"
            default: escaped.unicodeScalars.append(scalar)
            }
        }
        return escaped
    }

    private static func shortened(_ text: String) -> String {
        let scalars = text.unicodeScalars
        guard let end = scalars.index(scalars.startIndex, offsetBy: longestText, limitedBy: scalars.endIndex),
            end < scalars.endIndex
        else { return text }
        return text[..<end] + "…"
    }
}
