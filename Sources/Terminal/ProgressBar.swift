/// The state of a progress bar: returns the lines to draw, and writes nothing itself.
package struct ProgressBar: Sendable {
    private let title: String
    private let total: Int
    private var lastDrawn: Duration?

    package init(title: String, total: Int) {
        self.title = title
        self.total = max(total, 0)
    }

    /// The line to draw when `done` items are completed; `nil` if the last line was drawn less than 100 ms ago.
    package mutating func advanced(to done: Int, after elapsed: Duration, width: Int) -> String? {
        if let lastDrawn, elapsed - lastDrawn < .milliseconds(100), done < total { return nil }
        lastDrawn = elapsed
        let share = total == 0 ? 1 : min(1, Double(done) / Double(total))
        let percent = "\(Int(share * 100))%"
        let counts = "\(done)/\(total)"
        let left = remaining(done: done, after: elapsed).map { " \($0) left" } ?? ""
        let room = width - VisibleText.width(title) - counts.count - left.count - 10
        guard room >= 10 else { return VisibleText.cutAtEnd("\(title) \(counts) \(percent)", to: width - 1) }
        let filled = Int(share * Double(room))
        let bar = String(repeating: "█", count: filled) + String(repeating: "░", count: room - filled)
        return "\(title) \(bar) \(percent) \(counts)\(left)"
    }

    private func remaining(done: Int, after elapsed: Duration) -> String? {
        guard done > 0, done < total else { return nil }
        let seconds = Int((elapsed / done * (total - done)).components.seconds)
        switch seconds {
        case ..<60: return "\(seconds)s"
        case ..<3_600: return "\(seconds / 60)m\(seconds % 60)s"
        default: return "\(seconds / 3_600)h\(seconds % 3_600 / 60)m"
        }
    }
}
