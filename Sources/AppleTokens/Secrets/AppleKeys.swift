import Basics

/// The keys that Apple issued to developer teams, by their files: a comma-separated list of `TEAMID/KEYID=FILE`, or
/// `TEAMID/primary.app.id/KEYID=FILE` for a key that belongs to one primary App ID.
package struct AppleKeys: Sendable, Equatable {
    package struct Entry: Sendable, Equatable {
        package let team: TeamID
        /// nil: for all apps of the team.
        package let app: AppID?
        package let keyID: String
        package let file: String
    }

    /// In the order of the text; not empty.
    package let entries: [Entry]

    package init(parsing text: String) throws(AppleKeysError) {
        var entries: [Entry] = []
        for (index, item) in text.split(separator: ",", omittingEmptySubsequences: false).enumerated() {
            let entry = try Self.entry(item.trimmed(\.isWhitespace), position: index + 1)
            let isRepeated = entries.contains {
                $0.team == entry.team && $0.app == entry.app && $0.keyID == entry.keyID
            }
            guard !isRepeated else { throw AppleKeysError(position: index + 1, cause: "names a key again") }
            entries.append(entry)
        }
        self.entries = entries
    }

    /// The keys that may sign for an app group, the ones of its primary App ID first.
    package func entries(for group: AudienceMap.Group) -> [Entry] {
        let own = entries.filter { $0.team == group.team && $0.app == group.app }
        return own + entries.filter { $0.team == group.team && $0.app == nil }
    }

    private static func entry(_ text: Substring, position: Int) throws(AppleKeysError) -> Entry {
        let sides = text.split(separator: "=", maxSplits: 1, omittingEmptySubsequences: false)
        let names = sides[0].split(separator: "/", omittingEmptySubsequences: false)
        guard sides.count == 2, 2...3 ~= names.count, !sides[1].isEmpty else {
            throw AppleKeysError(position: position, cause: "lacks a team, a key id or a file")
        }
        for (name, what) in [(names[0], "team id"), (names[names.count - 1], "key id")] where !isAppleID(name) {
            throw AppleKeysError(position: position, cause: "has a \(what) that is not ten characters of A–Z and 0–9")
        }
        let app = names.count == 3 ? names[1] : nil
        guard
            app.map({ 1...255 ~= $0.utf8.count && $0.utf8.allSatisfy { $0.isLetterOrDigit || "-._".utf8.contains($0) } }
            ) ?? true
        else { throw AppleKeysError(position: position, cause: "has a malformed primary App ID") }
        return Entry(
            team: TeamID(String(names[0])),
            app: app.map { AppID(String($0)) },
            keyID: String(names[names.count - 1]),
            file: String(sides[1])
        )
    }

    private static func isAppleID(_ text: Substring) -> Bool {
        text.utf8.count == 10 && text.utf8.allSatisfy { $0.isLetterOrDigit && $0 < UInt8(ascii: "a") }
    }
}

package struct AppleKeysError: Error, Sendable, Equatable, CustomStringConvertible {
    /// The number of the entry, from 1.
    package let position: Int
    package let cause: String

    package var description: String {
        "entry \(position) \(cause): write TEAMID/KEYID=FILE, such as A1B2C3D4E5/KEY1234567=/etc/siwad/AuthKey_KEY1234567.p8"
    }
}
