/// The people of a measurement: the same in siwad's schema, in the peers', and in the tokens.
enum Population {
    static let team = "A1B2C3D4E5"
    static let app = "com.example.app"

    /// A `sub` in Apple's format, derived from the person's number.
    static func subject(_ number: Int) -> String {
        func padded(_ text: String, _ width: Int) -> String {
            String(repeating: "0", count: max(0, width - text.count)) + text
        }
        return padded("\(number % 1_000_000)", 6) + "." + padded(String(number, radix: 16), 32) + "."
            + padded("\(number % 2_400)", 4)
    }

    static let subjectSQL = """
        lpad((i % 1000000)::text, 6, '0') || '.' || lpad(to_hex(i), 32, '0') || '.' || lpad((i % 2400)::text, 4, '0')
        """

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
            INSERT INTO siwa.account_sessions (session_id, account_id, app_id, created_at, signed_in_at, expires_at)
            SELECT to_char(account_id, 'FM0000000000') || '-' || n, account_id, '\(app)', '2026-02-01', '2026-01-01', now() + interval '1 year'
            FROM siwa.accounts, generate_series(1, \(sessionsEach)) AS n
            """,
        ]
    }

    /// Months over which stored notifications are spread.
    private static let months = 6

    /// Statements that store notifications for these people, spread evenly over the months up to now.
    static func storeNotifications(_ count: Int, people: Int) -> [String] {
        [
            // One month earlier than needed: months differ in length, so the earliest time may be in that month.
            "SELECT siwa.ensure_notification_partitions(now() - interval '\(months) months', now())::text",
            // With a jti as long and as random as Apple's.
            """
            INSERT INTO siwa.notifications (
                jti, issued_at, received_at, event_time, sessions_ended, team_id, app_id, sub, event_type, outcome, source,
                verified_kid, jws
            )
            SELECT
                left(translate(encode(sha256(int8send(i)), 'base64'), '+/', '-_'), 22), t.at, t.at, t.at, 0, '\(team)',
                '\(app)', a.sub, 'email-enabled', 'unchanged', 'endpoint', 'benchmark', 'a stand-in for the token'
            FROM generate_series(1, \(count)) AS i
            CROSS JOIN LATERAL (
                SELECT
                    now() - (i % \(months)) * interval '1 month'
                        - random() * (now() - date_trunc('month', now(), 'UTC')) AS at
            ) AS t
            JOIN siwa.accounts AS a ON a.account_id = 1 + (i::bigint * 7919) % \(people)
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
