import Settings
import WebServer

/// The database and the settings of a siwad as hashes, which `/readyz?verbose` shows and `siwad doctor` compares. No secret
/// goes into them.
struct Instance: Sendable, Equatable {
    private static let check = "instance"
    private static let words = ["database", "settings"]

    /// nil if the database was never reached.
    let database: String?
    /// ``Configuration/digest(reloading:)``
    let settings: String

    init(database: String?, settings: String) {
        (self.database, self.settings) = (database, settings)
    }

    /// Reads the line of the check in the response of `/readyz?verbose`; nil if there is none.
    init?(readiness: String) {
        guard let line = readiness.split(separator: "\n").first(where: { $0.hasPrefix("[+]\(Self.check) ") }) else {
            return nil
        }
        let words = line.split { " :,".contains($0) }
        func value(after word: String) -> String? {
            words.firstIndex(of: word[...]).flatMap { $0 + 1 < words.count ? String(words[$0 + 1]) : nil }
        }
        guard let database = value(after: Self.words[0]), let settings = value(after: Self.words[1]) else { return nil }
        self.init(database: database == "unknown" ? nil : database, settings: settings)
    }

    /// `[+]instance ok: database 0f1e2d3c4b5a6978, settings 0123…`
    var readinessCheck: ReadinessCheck {
        let detail = "\(Self.words[0]) \(database ?? "unknown"), \(Self.words[1]) \(settings)"
        return ReadinessCheck(name: Self.check, isReady: true, detail: detail)
    }
}
