import Glibc
import Terminal

/// Says on standard error what takes long.
enum Progress {
    private static let console = Console.standard(environment: [:])

    static func note(_ text: String) { console.note("… \(text)") }
}
