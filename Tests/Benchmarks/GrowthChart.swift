/// Throughput by size, as a picture that needs nothing but a browser.
struct GrowthChart {
    /// One curve.
    struct Series {
        let name: String
        let points: [(size: Int, rate: Double)]
    }

    let series: [Series]

    private static let (width, height) = (720.0, 340.0)
    private static let (left, right, top, bottom) = (70.0, 690.0, 30.0, 280.0)
    private static let colors = ["#0b6bcb", "#b4430c"]

    /// The picture. Sizes are drawn by their order, evenly, because they grow by factors and begin at nothing.
    var svg: String {
        let highest = (series.flatMap(\.points).map(\.rate).max() ?? 1) * 1.15
        let step = Self.niceStep(highest / 4)
        var parts = [
            """
            <svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 \(Self.text(Self.width)) \(Self.text(Self.height))" \
            font-family="system-ui, sans-serif" font-size="13" role="img">
            <title>Notifications a second by size of the database</title>
            <rect width="100%" height="100%" fill="#ffffff"/>
            <text x="12" y="18" fill="#333333">notifications a second</text>
            """
        ]
        for index in 0...Int(highest / step) {
            let y = Self.y(Double(index) * step, highest)
            parts.append(
                """
                <line x1="\(Self.text(Self.left))" y1="\(Self.text(y))" x2="\(Self.text(Self.right))" y2="\(Self.text(y))" \
                stroke="#dddddd"/>
                <text x="\(Self.text(Self.left - 8))" y="\(Self.text(y + 4))" text-anchor="end" fill="#333333">\
                \(Self.short(Int(Double(index) * step)))</text>
                """
            )
        }
        for (index, curve) in series.enumerated() { parts.append(Self.curve(curve, index, highest)) }
        parts.append("</svg>\n")
        return parts.joined(separator: "\n")
    }

    private static func curve(_ series: Series, _ index: Int, _ highest: Double) -> String {
        let color = colors[index % colors.count]
        let points = series.points.enumerated().map { position, point in
            (x: x(position, of: series.points.count), y: y(point.rate, highest), point: point)
        }
        let line = points.map { "\(text($0.x)),\(text($0.y))" }.joined(separator: " ")
        let marks = points.map { mark in
            """
            <circle cx="\(text(mark.x))" cy="\(text(mark.y))" r="4" fill="\(color)"/>
            <text x="\(text(mark.x))" y="\(text(index == 0 ? mark.y - 10 : mark.y + 20))" text-anchor="middle" \
            fill="\(color)">\(short(Int(mark.point.rate)))</text>
            <text x="\(text(mark.x))" y="\(text(bottom + 18 + Double(index) * 17))" text-anchor="middle" \
            fill="\(color)">\(short(mark.point.size))</text>
            """
        }
        return """
            <polyline points="\(line)" fill="none" stroke="\(color)" stroke-width="2"/>
            \(marks.joined(separator: "\n"))
            <text x="\(text(left))" y="\(text(bottom + 52))" dx="\(index * 250)" fill="\(color)">● \(series.name)</text>
            """
    }

    private static func x(_ position: Int, of count: Int) -> Double {
        count < 2 ? (left + right) / 2 : left + 50 + (right - left - 100) * Double(position) / Double(count - 1)
    }

    private static func y(_ rate: Double, _ highest: Double) -> Double { bottom - (bottom - top) * rate / highest }

    private static func text(_ number: Double) -> String { Report.rounded(number, 1) }

    private static func short(_ number: Int) -> String {
        switch number {
        case 1_000_000...: Report.rounded(Double(number) / 1e6, number % 1_000_000 == 0 ? 0 : 1) + " M"
        case 1_000...: Report.rounded(Double(number) / 1e3, number % 1_000 == 0 ? 0 : 1) + " k"
        default: "\(number)"
        }
    }

    private static func niceStep(_ least: Double) -> Double {
        var step = 1.0
        while true {
            for factor in [1.0, 2, 5] where step * factor >= least { return step * factor }
            step *= 10
        }
    }
}
