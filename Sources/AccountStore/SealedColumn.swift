package import Postgres

/// A column with secrets that are sealed with a key of `SIWAD_SEALING_KEYS`. The commands and checks of sealing go through all
/// cases; to seal another column, add one.
package enum SealedColumn: String, Sendable, CaseIterable {
    case endpointSecrets = "endpoint_secrets"
    case appleTokens = "apple_tokens"

    /// The column with the name of the key; null where nothing is sealed.
    private var keyName: String {
        switch self {
        case .endpointSecrets: "key_id"
        case .appleTokens: "key_name"
        }
    }

    /// The columns of the primary key, with their types.
    private var identity: [(name: String, type: String)] {
        switch self {
        case .endpointSecrets: [("endpoint_id", "integer"), ("purpose", "text"), ("generation", "integer")]
        case .appleTokens: [("account_id", "bigint"), ("client_id", "text")]
        }
    }

    /// What else changes in the row of a text that was opened and sealed again.
    private var recovery: String {
        switch self {
        case .endpointSecrets: ""
        case .appleTokens: ", state = CASE t.state WHEN 'unreadable' THEN 'valid' ELSE t.state END"
        }
    }
}

/// A sealed text and the row that it belongs to.
package struct SealedRow: Sendable, Equatable {
    /// The values of the primary key.
    package let identity: [String]
    package let keyName: String
    package let sealed: [UInt8]

    package init(identity: [String], keyName: String, sealed: [UInt8]) {
        self.identity = identity
        self.keyName = keyName
        self.sealed = sealed
    }
}

extension SealedColumn {
    /// True if the role of the session may read the sealed texts; readers may not.
    package func isReadable(in session: borrowing Session) throws(PostgresError) -> Bool {
        try session.execute(once: "SELECT has_table_privilege('siwa.\(rawValue)', 'SELECT')").bool(0, 0)
    }

    /// The number of sealed texts by the name of their key.
    package func counts(in session: borrowing Session) throws(PostgresError) -> [String: Int] {
        let sql = "SELECT \(keyName), count(*) FROM siwa.\(rawValue) WHERE \(keyName) IS NOT NULL GROUP BY 1"
        let counts = try session.execute(once: sql).decode { (name: String, count: Int) in (name, count) }
        return Dictionary(uniqueKeysWithValues: counts)
    }

    /// The next sealed texts in the order of the primary key.
    ///
    /// - Parameters:
    ///   - after: the identity of the last row that was read; nil for the first rows.
    ///   - excluded: the name of a key whose texts are left out.
    ///   - locking: true to lock the rows, and to leave out rows that another session has locked.
    package func rows(
        after: [String]?,
        except excluded: String? = nil,
        limit: Int,
        locking: Bool = false,
        in session: borrowing Session
    ) throws(PostgresError) -> [SealedRow] {
        var conditions = Conditions()
        conditions.add("\(keyName) IS NOT NULL")
        conditions.add("\(keyName) <> ?", excluded)
        // Without the table, ORDER BY would mean the columns of the output, and sort texts.
        let columns = identity.map { "t.\($0.name)" }.joined(separator: ", ")
        if let after {
            let values = zip(after, identity).map { "\(conditions.bind($0))::\($1.type)" }.joined(separator: ", ")
            conditions.add("(\(columns)) > (\(values))")
        }
        let statement = Statement(
            once: """
                SELECT \(keyName), sealed, \(identity.map { "\($0.name)::text" }.joined(separator: ", "))
                FROM siwa.\(rawValue) AS t
                WHERE \(conditions.sql)
                ORDER BY \(columns)
                LIMIT \(conditions.bind(limit))
                \(locking ? "FOR UPDATE SKIP LOCKED" : "")
                """
        )
        let found = try session.execute(statement, conditions.binds)
        var rows: [SealedRow] = []
        for row in 0..<found.count {
            var values: [String] = []
            for column in identity.indices { values.append(try found.string(row, column + 2)) }
            rows.append(
                SealedRow(identity: values, keyName: try found.string(row, 0), sealed: try found.bytes(row, 1))
            )
        }
        return rows
    }

    /// Replaces sealed texts, which the transaction has locked.
    package func replace(_ rows: [SealedRow], in transaction: borrowing Session) throws(PostgresError) {
        let binds = Binds { binds in
            binds.appendTexts(rows.count) { rows[$0].keyName }
            binds.appendBytes(rows.count) { rows[$0].sealed }
            for column in identity.indices { binds.appendTexts(rows.count) { rows[$0].identity[column] } }
        }
        let arrays = identity.indices.map { "$\($0 + 3)::text[]" }.joined(separator: ", ")
        let names = identity.map { "i_\($0.name)" }.joined(separator: ", ")
        let join = identity.map { "t.\($0.name) = n.i_\($0.name)::\($0.type)" }.joined(separator: " AND ")
        let sql = """
            UPDATE siwa.\(rawValue) AS t SET \(keyName) = n.key_name, sealed = n.sealed\(recovery)
            FROM unnest($1::text[], $2::bytea[], \(arrays)) AS n (key_name, sealed, \(names))
            WHERE \(join)
            """
        _ = try transaction.execute(Statement(once: sql), binds)
    }

    /// Marks texts that no key opens, if the column has a state for that. The transaction has locked their rows.
    package func setAside(_ rows: [SealedRow], in transaction: borrowing Session) throws(PostgresError) {
        switch self {
        case .endpointSecrets: break
        case .appleTokens: try RefreshTokens.setAside(rows.map(\.identity), in: transaction)
        }
    }
}
