/// Which known name somebody probably meant.
enum KeyGuess {
    /// The nearest name within a few changes of a character, or nil if none is near.
    static func nearest(to name: String, among names: [String]) -> String? {
        let ranked = names.map { (distance: distance(Array(name.utf8.prefix(64)), Array($0.utf8)), name: $0) }
        guard let best = ranked.min(by: { $0.distance < $1.distance }) else { return nil }
        return best.distance <= max(1, best.name.utf8.count / 5) ? best.name : nil
    }

    /// Levenshtein's distance.
    private static func distance(_ left: [UInt8], _ right: [UInt8]) -> Int {
        var previous = Array(0...right.count)
        for (row, byte) in left.enumerated() {
            var current = [row + 1]
            for (column, other) in right.enumerated() {
                let replaced = previous[column] + (byte == other ? 0 : 1)
                current.append(min(replaced, previous[column + 1] + 1, current[column] + 1))
            }
            previous = current
        }
        return previous[right.count]
    }
}
