package import AppleTokens
import Basics
import JOSE

/// A backend that may use the application endpoint.
package struct Caller: Sendable, Equatable {
    package let name: String
    /// The client ids that it may act for; nil: all.
    package let clients: Set<ClientID>?

    package init(name: String, clients: Set<ClientID>? = nil) {
        self.name = name
        self.clients = clients
    }

    package func mayActFor(_ client: ClientID) -> Bool { clients?.contains(client) ?? true }
}

/// The callers with the digests of their tokens: a line `NAME SHA256HEX [client.id …]` for each token.
package struct CallerDirectory: Sendable, Equatable {
    private struct Entry: Sendable, Equatable {
        let digest: [UInt8]
        let caller: Caller
    }

    private let entries: [Entry]

    /// The names in the order of the lines. While a token is replaced, a name has two lines.
    package var names: [String] { entries.map(\.caller.name) }

    /// The client ids that lines name.
    package var clients: Set<ClientID> { entries.reduce(into: []) { $0.formUnion($1.caller.clients ?? []) } }

    /// Empty lines are skipped. A list in a configuration file has commas.
    ///
    /// - Throws: An error with the number of the line, and never a part of a digest.
    package init(parsing text: String) throws(CallerDirectoryError) {
        var entries: [Entry] = []
        let lines = text.split(omittingEmptySubsequences: false) { $0.isNewline || $0 == "," }
        for (index, line) in lines.enumerated() where !line.allSatisfy(\.isWhitespace) {
            let entry = try Self.entry(line, number: index + 1)
            guard !entries.contains(where: { $0.digest == entry.digest }) else {
                throw CallerDirectoryError(line: index + 1, cause: "another line has the same token: give each its own")
            }
            entries.append(entry)
        }
        guard !entries.isEmpty else { throw CallerDirectoryError(line: 0, cause: "there is no line") }
        self.entries = entries
    }

    /// Finds the caller that has this token. The time depends neither on the token nor on the line.
    package func caller(bearer: [UInt8]) -> Caller? {
        let digest = SHA256.digest(bearer.span)
        var found: Caller?
        for entry in entries where entry.digest.isEqualInConstantTime(to: digest) { found = entry.caller }
        return found
    }

    private static func entry(_ line: Substring, number: Int) throws(CallerDirectoryError) -> Entry {
        let words = line.split(whereSeparator: \.isWhitespace)
        guard SealingKeys.isName(words[0]) else {
            let cause = "the name must have 1 to 64 letters, digits, hyphens, dots and underscores"
            throw CallerDirectoryError(line: number, cause: cause)
        }
        guard words.count > 1, let digest = digest(words[1]) else {
            let cause = "the SHA-256 of a token, 64 hexadecimal digits, must follow the name"
            throw CallerDirectoryError(line: number, cause: cause)
        }
        let clients = words.dropFirst(2).map { ClientID(String($0)) }
        let caller = Caller(name: String(words[0]), clients: clients.isEmpty ? nil : Set(clients))
        return Entry(digest: digest, caller: caller)
    }

    private static func digest(_ text: Substring) -> [UInt8]? {
        let digits = text.utf8.compactMap(\.hexadecimalDigit)
        guard digits.count == SHA256.digestLength * 2, text.utf8.count == digits.count else { return nil }
        return stride(from: 0, to: digits.count, by: 2).map { digits[$0] << 4 | digits[$0 + 1] }
    }
}

package struct CallerDirectoryError: Error, Sendable, Equatable, CustomStringConvertible {
    /// The number of the line, from 1; 0 if there is none.
    package let line: Int
    package let cause: String

    package var description: String {
        let place = line == 0 ? "" : "line \(line): "
        return "\(place)\(cause); write NAME SHA256HEX [client.id …], as siwad application-token prints it"
    }
}
