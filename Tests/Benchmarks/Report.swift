import Terminal

/// Rows of figures, for people or for programs.
struct Report {
    /// A figure with so many decimals.
    enum Value {
        case text(String)
        case number(Double, decimals: Int)

        var shown: String {
            switch self {
            case .text(let text): text
            case .number(let number, let decimals): Report.rounded(number, decimals)
            }
        }

        var json: String {
            switch self {
            case .text(let text): JSONText.string(text).line
            case .number(let number, let decimals): Report.rounded(number, decimals)
            }
        }
    }

    private let columns: [String]
    private var rows: [[Value]] = []

    init(_ columns: [String]) { self.columns = columns }

    mutating func append(_ row: [Value]) { rows.append(row) }

    /// Prints the machine, then the rows.
    func print(asJSON: Bool) {
        let console = Console.standard(environment: [:])
        guard !asJSON else {
            for row in rows {
                let members = zip(columns, row).map { JSONText.string($0).line + ":" + $1.json }
                console.print("{" + members.joined(separator: ",") + "}")
            }
            return
        }
        var table = Table(columns.enumerated().map { Table.Column($1, isRightAligned: $0 > 0) })
        for row in rows { table.append(row.map { Table.Cell($0.shown) }) }
        console.print(Machine.description)
        console.print()
        console.print(lines: table.lines(style: .plain))
    }

    /// A decimal fraction, as every locale and JSON read it.
    static func rounded(_ number: Double, _ decimals: Int) -> String {
        let scale = (0..<decimals).reduce(1.0) { scale, _ in scale * 10 }
        let scaled = Int64((number * scale).rounded())
        guard decimals > 0 else { return "\(scaled)" }
        let digits = String(scaled.magnitude)
        let padded = String(repeating: "0", count: max(0, decimals + 1 - digits.count)) + digits
        return (scaled < 0 ? "-" : "") + padded.dropLast(decimals) + "." + padded.suffix(decimals)
    }
}

extension Report {
    /// The columns of a load.
    static let loadColumns = [
        "load", "per second", "p50 ms", "p99 ms", "p99.9 ms", "service µs", "PostgreSQL µs", "MiB",
    ]

    /// A row of those columns, and of more.
    mutating func append(_ name: String, _ measurement: Measurement, _ more: [Value] = []) {
        let figures: [Value] = [
            .text(name),
            .number(measurement.rate, decimals: 0),
            .number(measurement.median, decimals: 2),
            .number(measurement.p99, decimals: 2),
            .number(measurement.p999, decimals: 2),
            .number(measurement.serviceMicroseconds, decimals: 1),
            .number(measurement.serverMicroseconds, decimals: 1),
            .number(measurement.resident, decimals: 1),
        ]
        append(figures + more)
    }
}

extension [Double] {
    /// Three figures of what came out in several rounds: the median, the least and the greatest. There must be one.
    var spread: [Report.Value] { [median, self.min() ?? 0, self.max() ?? 0].map { .number($0, decimals: 2) } }
}
