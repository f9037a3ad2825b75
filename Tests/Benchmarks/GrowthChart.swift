/// Draws throughput by database size as SVG.
struct GrowthChart {
    /// One curve: throughput relative to the smallest database.
    struct Series {
        let name: String
        let points: [(size: Int, share: Double)]
    }

    let series: [Series]

    private static let (width, height) = (720.0, 340.0)
    private static let (left, right, top, bottom) = (70.0, 690.0, 30.0, 280.0)
    private static let colors = ["#0b6bcb", "#b4430c"]

    /// The picture. Sizes are placed at equal distances, because they grow by factors and start at 0.
    var svg: String {
        let highest = (series.flatMap(\.points).map(\.share).max() ?? 1) * 1.15
        let step = Self.niceStep(highest / 6)
        var parts = [
            """
            <svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 \(Self.text(Self.width)) \(Self.text(Self.height))" \
            font-family="system-ui, sans-serif" font-size="13" role="img">
            <title>Notifications per second by database size</title>
            <rect width="100%" height="100%" fill="#ffffff"/>
            <text x="12" y="18" fill="#333333">notifications per second, relative to the smallest database</text>
            """
        ]
        for index in 0...Int(highest / step) {
            let y = Self.y(Double(index) * step, highest)
            parts.append(
                """
                <line x1="\(Self.text(Self.left))" y1="\(Self.text(y))" x2="\(Self.text(Self.right))" y2="\(Self.text(y))" \
                stroke="#dddddd"/>
                <text x="\(Self.text(Self.left - 8))" y="\(Self.text(y + 4))" text-anchor="end" fill="#333333">\
                \(Self.text(Double(index) * step))</text>
                """
            )
        }
        for (index, curve) in series.enumerated() { parts.append(self.curve(curve, index, highest)) }
        parts.append("</svg>\n")
        return parts.joined(separator: "\n")
    }

    private func curve(_ curve: Series, _ index: Int, _ highest: Double) -> String {
        let color = Self.colors[index % Self.colors.count]
        let points = curve.points.enumerated().map { position, point in
            (
                x: Self.text(Self.x(position, of: curve.points.count)), y: Self.y(point.share, highest), point: point,
                // Figures are above the highest curve and below the others, so that they do not overlap.
                offset: isHighest(point.share, at: position) ? -10.0 : 20.0
            )
        }
        let line = points.map { "\($0.x),\(Self.text($0.y))" }.joined(separator: " ")
        let marks = points.map { mark in
            """
            <circle cx="\(mark.x)" cy="\(Self.text(mark.y))" r="4" fill="\(color)"/>
            <text x="\(mark.x)" y="\(Self.text(mark.y + mark.offset))" text-anchor="middle" \
            fill="\(color)">\(Report.rounded(mark.point.share, 2))</text>
            <text x="\(mark.x)" y="\(Self.text(Self.bottom + 18 + Double(index) * 17))" text-anchor="middle" \
            fill="\(color)">\(Self.short(mark.point.size))</text>
            """
        }
        return """
            <polyline points="\(line)" fill="none" stroke="\(color)" stroke-width="2"/>
            \(marks.joined(separator: "\n"))
            <text x="\(Self.text(Self.left))" y="\(Self.text(Self.bottom + 52))" dx="\(index * 250)" fill="\(color)">● \(curve.name)</text>
            """
    }

    private func isHighest(_ share: Double, at position: Int) -> Bool {
        !series.contains { $0.points.count > position && $0.points[position].share > share }
    }

    private static func x(_ position: Int, of count: Int) -> Double {
        count < 2 ? (left + right) / 2 : left + 50 + (right - left - 100) * Double(position) / Double(count - 1)
    }

    private static func y(_ share: Double, _ highest: Double) -> Double { bottom - (bottom - top) * share / highest }

    private static func text(_ number: Double) -> String { Report.rounded(number, 1) }

    private static func short(_ number: Int) -> String {
        switch number {
        case 1_000_000...: Report.rounded(Double(number) / 1e6, number % 1_000_000 == 0 ? 0 : 1) + " M"
        case 1_000...: Report.rounded(Double(number) / 1e3, number % 1_000 == 0 ? 0 : 1) + " k"
        default: "\(number)"
        }
    }

    private static func niceStep(_ least: Double) -> Double {
        var step = 0.1
        while true {
            for factor in [1.0, 2, 5] where step * factor >= least { return step * factor }
            step *= 10
        }
    }
}
