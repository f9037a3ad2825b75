// An application that keeps the sessions of people who sign in with Apple in siwad, as a command:
//
//     example sign-in SUB EMAIL SECONDS   records a sign-in with the token's `iat`, and prints the token of a session
//     example check SESSION               whether a request with this session's token is allowed
//     example changes                     acts on each change once
//     example newsletter                  prints the addresses to write to
//
// Environment: DATABASE_URL, CLIENT_ID.

import Basics
import FoundationEssentials
import JOSE
import Postgres

let environment = ProcessInfo.processInfo.environment
let client = environment["CLIENT_ID"]
let database = try await PostgresConnection.connect(
    ConnectionSettings(conninfo: environment["DATABASE_URL"], applicationName: "example")
)

/// The database has a digest, so that a reader of it can't use a session.
func sessionID(_ token: String) -> String { SHA256.digest(Array(token.utf8).span).hexadecimal }

/// - Returns: the token of a session; nil if the consent was revoked after Apple issued the identity token.
func signIn(sub: String, email: String, issuedAt: Int64) async throws -> String? {
    let token = UUID().uuidString
    let isLive = try await database.transaction { transaction throws(PostgresError) in
        _ = try transaction.execute(
            Statement("SELECT siwa.record_sign_in($1, $2, $3, true, to_timestamp($4))"),
            client,
            sub,
            email,
            issuedAt
        )
        let open = "SELECT siwa.open_session($1, $2, $3, to_timestamp($4), now() + interval '30 days')"
        guard try transaction.execute(Statement(open), client, sub, sessionID(token), issuedAt).bool(0, 0) else {
            return false
        }
        _ = try transaction.execute(
            Statement(
                """
                INSERT INTO shop.subscribers AS s VALUES ($1, $2)
                ON CONFLICT (sub) DO UPDATE SET email = coalesce(excluded.email, s.email)
                """
            ),
            sub,
            email
        )
        return true
    }
    return isLive ? token : nil
}

func isLive(_ token: String) async throws -> Bool {
    try await database.withSession { connection throws(PostgresError) in
        try connection.execute(Statement("SELECT siwa.session_is_live($1)"), sessionID(token)).bool(0, 0)
    }
}

/// Acts on each change once: the position is stored in the transaction that acts.
func actOnChanges() async throws {
    try await database.transaction { transaction throws(PostgresError) in
        var position = try transaction.execute(Statement("SELECT position FROM shop.feed FOR UPDATE")).int64(0, 0)
        let next = "SELECT position, sub, type FROM siwa.changes WHERE position > $1 ORDER BY position LIMIT 100"
        let changes = try transaction.execute(Statement(next), position)
        for row in 0..<changes.count {
            let (sub, type) = (try changes.string(row, 1), try changes.string(row, 2))
            print("\(sub): \(type)")
            if type == "siwa.account.deleted" {
                _ = try transaction.execute(Statement("DELETE FROM shop.subscribers WHERE sub = $1"), sub)
            }
            position = try changes.int64(row, 0)
        }
        _ = try transaction.execute(Statement("UPDATE shop.feed SET position = $1"), position)
    }
}

func recipients() async throws -> [String] {
    try await database.withSession { connection throws(PostgresError) in
        let rows = try connection.execute(
            Statement(
                """
                SELECT email FROM shop.subscribers AS s
                WHERE email IS NOT NULL
                    AND NOT EXISTS (SELECT FROM siwa.undeliverable_addresses AS u WHERE u.email = s.email)
                ORDER BY email
                """
            )
        )
        return try (0..<rows.count).map { row throws(PostgresError) in try rows.string(row, 0) }
    }
}

let arguments = Array(CommandLine.arguments.dropFirst())
switch arguments.first {
case "sign-in" where arguments.count == 4:
    let token = try await signIn(sub: arguments[1], email: arguments[2], issuedAt: Int64(arguments[3]) ?? 0)
    print(token ?? "Sign in again.")
case "check" where arguments.count == 2:
    print(try await isLive(arguments[1]) ? "Welcome." : "Sign in first.")
case "changes": try await actOnChanges()
case "newsletter": print(try await recipients().joined(separator: "\n"))
default: print("usage: example sign-in SUB EMAIL SECONDS | check SESSION | changes | newsletter")
}
await database.close()
