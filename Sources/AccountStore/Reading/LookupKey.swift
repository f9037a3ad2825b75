import AppleTokens
package import Postgres

/// A kind of id that an operator may abbreviate.
package enum LookupKey: Sendable {
    /// The `sub` of a person who has an account.
    case subject
    /// The `sub` of a person who has an account or a dead letter.
    case letterSubject
    /// The application's name for a session.
    case session
    /// The `jti` of a notification.
    case notification

    /// The most ids that ``matches(_:in:)`` returns.
    package static let limit = 100

    /// The columns whose indexes find the ids with a prefix. Ids have the collation "C", which LIKE requires.
    private var sources: [(table: String, column: String)] {
        switch self {
        case .subject: [("accounts", "sub")]
        case .letterSubject: [("accounts", "sub"), ("dead_letters", "sub")]
        case .session: [("account_sessions", "session_id")]
        case .notification: [("notifications", "jti")]
        }
    }

    /// The ids that begin with a text, up to ``limit``. The text itself comes first if it is an id.
    package func matches(_ prefix: String, in session: borrowing Session) throws(PostgresError) -> [String] {
        guard !prefix.isEmpty else { return [] }
        var pattern = ""
        for scalar in prefix.unicodeScalars {
            if #"\%_"#.unicodeScalars.contains(scalar) { pattern += #"\"# }
            pattern.unicodeScalars.append(scalar)
        }
        // Each SELECT has its own limit, so that it reads only the beginning of its index.
        let found = sources.map { table, column in
            """
            (SELECT DISTINCT \(column) AS id FROM siwa.\(table) WHERE \(column) LIKE $1 ORDER BY 1 LIMIT \(Self.limit))
            """
        }.joined(separator: " UNION ")
        let sql = "SELECT id FROM (\(found)) AS found ORDER BY 1 LIMIT \(Self.limit)"
        return try session.execute(once: sql, pattern + "%").decode { (id: String) in id }
    }
}

/// What an operator's name for a person finds.
package enum PersonMatch: Sendable, Equatable {
    /// The subs of the people: one, or everyone with an address.
    case people([String])
    /// Subs and session ids that begin with the text, at least two or none, each at most ``LookupKey/limit``.
    case ambiguous(subjects: [String], sessions: [String])

    /// Finds people by a sub, a session id, an address, or the beginning of a sub or session id, in this order.
    package init(_ text: String, in session: borrowing Session) throws(PostgresError) {
        let subjects = try LookupKey.subject.matches(text, in: session)
        let sessions = try subjects.first == text ? [] : LookupKey.session.matches(text, in: session)
        if subjects.first == text || subjects.count == 1 && sessions.isEmpty {
            self = .people([subjects[0]])
        } else if sessions.first == text || sessions.count == 1 && subjects.isEmpty {
            let filter = SessionFilter(id: sessions[0])
            self = .people(try Sessions.list(filter, in: session).map(\.subject.rawValue))
        } else {
            let people = try text.contains("@") ? Self.people(withAddress: text, in: session) : []
            self = people.isEmpty ? .ambiguous(subjects: subjects, sessions: sessions) : .people(people)
        }
    }

    /// Apple writes relay addresses in lower case.
    private static func people(
        withAddress address: String,
        in session: borrowing Session
    ) throws(PostgresError) -> [String] {
        try session.execute(
            once: """
                SELECT DISTINCT sub FROM siwa.accounts WHERE email = ANY (ARRAY[$1, lower($1)])
                ORDER BY sub LIMIT \(LookupKey.limit)
                """,
            address
        ).decode { (sub: String) in sub }
    }
}
