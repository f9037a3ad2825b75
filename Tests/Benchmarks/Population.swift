/// The people of a measurement: the same in siwad's schema, in the peers', and in the tokens.
enum Population {
    static let team = "A1B2C3D4E5"
    static let app = "com.example.app"

    /// Apple's shape of a `sub`, for a person by number.
    static func subject(_ number: Int) -> String {
        func padded(_ text: String, _ width: Int) -> String {
            String(repeating: "0", count: max(0, width - text.count)) + text
        }
        return padded("\(number % 1_000_000)", 6) + "." + padded(String(number, radix: 16), 32) + "."
            + padded("\(number % 2_400)", 4)
    }

    private static let subjectSQL = """
        lpad((i % 1000000)::text, 6, '0') || '.' || lpad(to_hex(i), 32, '0') || '.' || lpad((i % 2400)::text, 4, '0')
        """

    /// Three sessions for each person.
    static let sessionsEach = 3

    /// Statements that fill siwad's migrated schema.
    static func fillSiwad(_ count: Int) -> [String] {
        [
            """
            INSERT INTO siwa.clients VALUES ('\(app)', '\(app)', '\(team)') ON CONFLICT DO NOTHING
            """,
            """
            INSERT INTO siwa.accounts (team_id, sub, email_observed_at, email, email_is_private)
            SELECT '\(team)', \(subjectSQL), '2026-01-01', 'u' || i || '@privaterelay.appleid.com', true
            FROM generate_series(0, \(count - 1)) AS i
            """,
            """
            INSERT INTO siwa.consents (account_id, app_id, authorized_at)
            SELECT account_id, '\(app)', '2026-01-01' FROM siwa.accounts
            """,
            """
            INSERT INTO siwa.account_sessions (session_id, account_id, app_id, created_at, expires_at)
            SELECT to_char(account_id, 'FM0000000000') || '-' || n, account_id, '\(app)', '2026-02-01', now() + interval '1 year'
            FROM siwa.accounts, generate_series(1, \(sessionsEach)) AS n
            """,
        ]
    }

    /// Statements that fill the peers' schema.
    static func fillPeer(_ count: Int) -> [String] {
        [
            """
            INSERT INTO account (apple_sub, email, consented_at)
            SELECT \(subjectSQL), 'u' || i || '@privaterelay.appleid.com', '2026-01-01'
            FROM generate_series(0, \(count - 1)) AS i
            """,
            "INSERT INTO session (account_id) SELECT id FROM account, generate_series(1, \(sessionsEach))",
        ]
    }
}
