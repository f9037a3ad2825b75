import Glibc
import JOSE

/// Searches what others could read for tokens and secrets: no test may leave a usable one in a log or in the database.
package enum TokenSearch {
    /// The first characters of each token in `texts`: authorization codes, access and refresh tokens of Apple's shape, and signed
    /// tokens.
    package static func tokens(in texts: [String]) -> [String] { tokens(in: texts, areNotificationsKept: false) }

    private static func tokens(in texts: [String], areNotificationsKept: Bool) -> [String] {
        // Two quick searches come first, because a regular expression takes long in large texts.
        texts.filter { strstr($0, ".0.") != nil || strstr($0, "eyJ") != nil }.flatMap { text in
            let opaque = text.matches(of: /[acr][0-9a-f]{32}\.0\.[a-z]{4,5}\./).map(\.output)
            let signed = text.matches(of: /eyJ[A-Za-z0-9_-]{16,}\.(eyJ[A-Za-z0-9_-]{16,})/).map(\.output)
            return (opaque + signed.filter { !(areNotificationsKept && isNotification($0.1)) }.map(\.0)).map {
                String($0.prefix(12))
            }
        }
    }

    /// The first characters of each secret that is in one of these texts.
    package static func occurrences(of secrets: Set<String>, in texts: [String]) -> [String] {
        // One text, because many secrets are searched for.
        let text = texts.joined(separator: "\n")
        return secrets.filter { strstr(text, $0) != nil }.map { String($0.prefix(12)) }
    }

    /// The keys in the lines of a ring, each as base64, base64url and hexadecimal. Lines without a key are left out.
    package static func spellings(ofRing lines: String) -> [String] {
        lines.split(separator: "\n").flatMap { line -> [String] in
            let text = line.split(separator: ":").last.map(String.init) ?? ""
            guard let key = try? Base64.decode(text), key.count == 32 else { return [] }
            return [text, Base64URL.encode(key), key.map { ($0 < 16 ? "0" : "") + String($0, radix: 16) }.joined()]
        }
    }

    /// As ``tokens(in:)`` and ``occurrences(of:in:)``, in all rows of the schema `siwa`, for tests that sign people in. Apple's
    /// notifications are stored there, and no person can sign in with one.
    ///
    /// - Parameter query: returns the values of one column.
    package static func tokensInDatabase(
        _ query: (_ sql: String) async throws -> [String],
        secrets: Set<String> = []
    ) async throws -> [String] {
        guard try await !query("SELECT '' FROM siwa.sign_ins LIMIT 1").isEmpty else { return [] }
        let tables = try await query(
            "SELECT oid::regclass::text FROM pg_class WHERE relnamespace = 'siwa'::regnamespace AND relkind = 'r' ORDER BY oid"
        )
        let rows = try await query(tables.map { "SELECT t::text FROM \($0) t" }.joined(separator: " UNION ALL "))
        let texts = rows + rows.flatMap(bytes)
        return tokens(in: texts, areNotificationsKept: true) + occurrences(of: secrets, in: texts)
    }

    private static func isNotification(_ payload: Substring) -> Bool {
        guard let json = try? Base64URL.decode(String(payload)) else { return false }
        return String(decoding: json, as: UTF8.self).contains("\"events\"")
    }

    /// The values of type bytea in a row, which are hexadecimal there.
    private static func bytes(in row: String) -> [String] {
        row.matches(of: /\\x([0-9a-f]{32,})/).map { match in
            let digits = Array(match.output.1.utf8)
            let bytes = stride(from: 0, to: digits.count - 1, by: 2).map { index in
                UInt8(String(decoding: digits[index...index + 1], as: UTF8.self), radix: 16) ?? 0
            }
            // The searches end at a zero byte.
            return String(decoding: bytes.map { $0 == 0 ? UInt8(ascii: " ") : $0 }, as: UTF8.self)
        }
    }
}
