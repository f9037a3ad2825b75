/// Prometheus' text exposition format 0.0.4.
struct PrometheusText {
    /// What Prometheus is told that a family is.
    enum MetricType: String, Sendable {
        case counter
        case gauge
        case histogram
    }

    /// The text so far.
    private(set) var text = ""

    /// Starts a family.
    mutating func begin(_ name: String, _ help: String, _ type: MetricType) {
        text += "# HELP \(name) \(Self.escaped(help, quote: false))\n# TYPE \(name) \(type.rawValue)\n"
    }

    /// One line of the family.
    mutating func sample(_ name: String, _ labels: [(name: String, value: String)], _ value: Double) {
        text += name
        if !labels.isEmpty {
            let pairs = labels.map { "\($0.name)=\"\(Self.escaped($0.value, quote: true))\"" }
            text += "{\(pairs.joined(separator: ","))}"
        }
        text += " \(Self.number(value))\n"
    }

    /// The lines of a histogram.
    mutating func histogram(_ name: String, _ histogram: Histogram) {
        let (cumulative, sum) = histogram.snapshot
        for (bound, count) in zip(histogram.bounds + [.infinity], cumulative) {
            sample("\(name)_bucket", [("le", Self.number(bound))], Double(count))
        }
        sample("\(name)_sum", [], sum)
        sample("\(name)_count", [], Double(cumulative.last ?? 0))
    }

    private static func number(_ value: Double) -> String {
        if value.isNaN { return "NaN" }
        if value.isInfinite { return value > 0 ? "+Inf" : "-Inf" }
        return Int64(exactly: value).map(String.init) ?? "\(value)"
    }

    private static func escaped(_ text: String, quote: Bool) -> String {
        var escaped = ""
        for scalar in text.unicodeScalars {
            switch scalar {
            case "\\": escaped += "\\\\"
            case "\n": escaped += "\\n"
            case "\"" where quote: escaped += "\\\""
            default: escaped.unicodeScalars.append(scalar)
            }
        }
        return escaped
    }
}
