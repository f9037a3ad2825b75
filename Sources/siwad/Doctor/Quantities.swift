/// `1 team`, `2 teams`
func counted(_ number: Int, _ noun: String) -> String {
    "\(number) \(noun)\(number == 1 ? "" : "s")"
}

/// A number of bytes as one reads it: `17 KiB`, `2.4 GiB`.
struct ByteCount: CustomStringConvertible {
    private let bytes: Int64

    /// So many.
    init(_ bytes: Int64) {
        self.bytes = bytes
    }

    var description: String {
        var (value, unit) = (bytes, "B")
        var tenths: Int64 = 0
        for next in ["KiB", "MiB", "GiB", "TiB"] where value >= 1_024 {
            tenths = value % 1_024 * 10 / 1_024
            (value, unit) = (value / 1_024, next)
        }
        return value < 10 && tenths > 0 ? "\(value).\(tenths) \(unit)" : "\(value) \(unit)"
    }
}

extension Duration {
    /// In the largest unit of which there are at least two: `90 s`, `36 h`, `3 d`; what is negative counts as nothing.
    var rounded: String {
        let seconds = max(0, components.seconds)
        return switch seconds {
        case ..<120: "\(seconds) s"
        case ..<7_200: "\(seconds / 60) min"
        case ..<172_800: "\(seconds / 3_600) h"
        default: "\(seconds / 86_400) d"
        }
    }
}
