import Terminal

/// Rows of figures, printed as a table or as JSON.
struct Report {
    /// A cell: text, or a number with a fixed count of decimals.
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
    private let isTuned: Bool
    private var rows: [[Value]] = []

    init(_ columns: [String], _ options: BenchmarkOptions) {
        self.columns = columns
        isTuned = options.tuned
    }

    mutating func append(_ row: [Value]) { rows.append(row) }

    /// Prints the machine and the server's settings, then the rows.
    func print(asJSON: Bool) {
        let console = Console.standard(environment: [:])
        guard !asJSON else {
            for row in rows {
                let members = zip(columns, row).map { JSONText.string($0).line + ":" + $1.json }
                console.print("{" + members.joined(separator: ",") + "}")
            }
            return
        }
        var table = Table(columns.enumerated().map { Table.Column($1, $0 > 0 ? .right : .left) })
        for row in rows { table.append(row.map { Table.Cell($0.shown) }) }
        console.print("\(Machine.description), \(isTuned ? "tuned" : "stock") PostgreSQL settings")
        console.print()
        console.print(lines: table.lines(style: .plain))
    }

    /// A decimal fraction with a point, valid in JSON.
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
    /// The columns for a ``Measurement``.
    static let loadColumns = [
        "load", "per second", "p50 ms", "p99 ms", "p99.9 ms", "service µs", "PostgreSQL µs", "MiB",
    ]

    /// Appends a row for `loadColumns` and further columns.
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

extension Report {
    /// The columns for figures that are measured once in each round.
    static let figureColumns = ["figure", "median", "least", "most", "target"]

    /// A row for `figureColumns`.
    static func figure(_ name: String, _ values: [Double], _ target: String = "") -> [Value] {
        [.text(name)] + values.spread + [.text(target)]
    }
}

extension [Double] {
    /// The median, the least and the greatest value. The array must not be empty.
    var spread: [Report.Value] { [median, self.min() ?? 0, self.max() ?? 0].map { .number($0, decimals: 2) } }
}

/// Reports steps that take long, on standard error.
enum Progress {
    private static let console = Console.standard(environment: [:])

    static func note(_ text: String) { console.note("… \(text)") }
}
