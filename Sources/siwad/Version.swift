import CBuild
import JOSE
import Postgres
import Terminal

/// This build of siwad, and the libraries that it runs with.
struct Version: CommandOutput {
    /// Also sent in metrics and the User-Agent.
    static let current = "0.1.0"

    private let facts: [(name: String, title: String, text: String)] = [
        ("version", "siwad", current),
        ("commit", "commit", String(cString: siwad_commit())),
        // The standard library does not know its patch release.
        ("swift", "Swift", "\(_SwiftStdlibVersion.current)".split(separator: ".").prefix(2).joined(separator: ".")),
        ("libpq", "libpq", ConnectionSettings.libraryVersion),
        ("openssl", "OpenSSL", SHA256.libraryVersion),
    ]

    func lines(style: OutputStyle) -> [String] { facts.map { $0.title.padding(to: 9) + $0.text } }
    var json: [JSONText] { [.object(facts.map { .init($0.name, .string($0.text)) })] }
}
