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

    /// The rows whose texts are in use, or may be used again.
    private var condition: String {
        switch self {
        // As in EndpointSecrets.live. An expired generation is never opened again, so its key may be lost.
        case .endpointSecrets: "key_id IS NOT NULL AND (expires_at IS NULL OR expires_at > now())"
        case .appleTokens: "key_name IS NOT NULL"
        }
    }

    /// The texts that another key seals, and the texts that were set aside: their key may be back, even as the first.
    ///
    /// - Parameter key: the SQL of its name.
    private func needsSealing(with key: String) -> String {
        switch self {
        case .endpointSecrets: "key_id <> \(key)"
        case .appleTokens: "(key_name <> \(key) OR state = 'unreadable')"
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

    /// The number of sealed texts by the name of their key, without the expired secrets of endpoints.
    package func counts(in session: borrowing Session) throws(PostgresError) -> [String: Int] {
        let sql = "SELECT \(keyName), count(*) FROM siwa.\(rawValue) WHERE \(condition) GROUP BY 1"
        let counts = try session.execute(once: sql).decode { (name: String, count: Int) in (name, count) }
        return Dictionary(uniqueKeysWithValues: counts)
    }

    /// The number of texts to seal again if this key is the first.
    package func count(toSealWith key: String, in session: borrowing Session) throws(PostgresError) -> Int {
        let sql = "SELECT count(*) FROM siwa.\(rawValue) WHERE \(condition) AND \(needsSealing(with: "$1"))"
        return try session.execute(once: sql, key).value(0, 0)
    }

    /// The next sealed texts in the order of the primary key, without the expired secrets of endpoints.
    ///
    /// - Parameters:
    ///   - after: the identity of the last row that was read; nil for the first rows.
    ///   - key: only the texts to seal again if this key is the first; nil for all.
    ///   - locking: true to lock the rows, and to leave out rows that another session has locked.
    package func rows(
        after: [String]?,
        toSealWith key: String? = nil,
        limit: Int,
        locking: Bool = false,
        in session: borrowing Session
    ) throws(PostgresError) -> [SealedRow] {
        var conditions = Conditions()
        conditions.add(condition)
        conditions.add(needsSealing(with: "?"), key)
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
    ///
    /// - Returns: the number of texts that were not marked before.
    package func setAside(_ rows: [SealedRow], in transaction: borrowing Session) throws(PostgresError) -> Int {
        switch self {
        case .endpointSecrets: 0
        case .appleTokens: try RefreshTokens.setAside(rows.map(\.identity), in: transaction)
        }
    }
}
