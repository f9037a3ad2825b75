import Glibc
import JOSE

/// Searches what others could read for tokens: no test may leave a usable one in a log or in the database.
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

    /// As ``tokens(in:)``, in all rows of the schema `siwa`, if somebody has signed in. Apple's notifications are stored there,
    /// and nobody can sign in with one.
    ///
    /// - Parameter query: returns the values of one column.
    package static func tokensInDatabase(_ query: (_ sql: String) async throws -> [String]) async throws -> [String] {
        guard try await !query("SELECT '' FROM siwa.sign_ins LIMIT 1").isEmpty else { return [] }
        let tables = try await query(
            "SELECT oid::regclass::text FROM pg_class WHERE relnamespace = 'siwa'::regnamespace AND relkind = 'r'"
        )
        let rows = try await query(tables.map { "SELECT t::text FROM \($0) t" }.joined(separator: " UNION ALL "))
        return tokens(in: rows + rows.flatMap(bytes), areNotificationsKept: true)
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
            return String(decoding: bytes, as: UTF8.self)
        }
    }
}
