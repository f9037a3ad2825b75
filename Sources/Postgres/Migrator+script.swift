extension Migrator {
    /// What ``up(on:deadline:)`` does, as SQL for somebody else to run: each migration in a transaction with the record of
    /// it, under the same lock. A database that has it is one that `up` has nothing to do in.
    ///
    /// - Parameters:
    ///   - done: the number of the last migration that the database has; 0: it has none, not even the table of them.
    ///   - checksum: the SHA-256 of a text, in hexadecimal.
    package func script(after done: Int = 0, checksum: (String) -> String) -> String {
        var parts = done > 0 ? [] : [transaction("The schema, and the record of its migrations", tableDefinition)]
        for migration in migrations where migration.number > done {
            let record = """
                INSERT INTO \(table) (number, name, checksum)
                VALUES (\(migration.number), \(Self.literal(migration.name)), '\(checksum(migration.sql))');
                """
            let body = [requirement(before: migration.number), migration.sql, record].joined(separator: "\n")
            parts.append(transaction("Migration \(migration.number): \(migration.name)", body))
        }
        return parts.joined(separator: "\n")
    }

    /// Fails a transaction whose predecessor failed: psql goes on after an error unless ON_ERROR_STOP is set.
    private func requirement(before number: Int) -> String {
        guard number > 1 else { return "" }
        return """
            DO $$ BEGIN
                IF NOT EXISTS (SELECT FROM \(table) WHERE number = \(number - 1)) THEN
                    RAISE EXCEPTION 'migration \(number - 1) is not applied'
                        USING HINT = 'Run the whole script again from the first error on; set ON_ERROR_STOP in psql.';
                END IF;
            END $$;
            """
    }

    private func transaction(_ title: String, _ body: String) -> String {
        """
        -- \(title)

        BEGIN;
        \(Self.localSettings);
        DO $$ BEGIN
            PERFORM pg_advisory_xact_lock(hashtextextended(\(Self.literal(Self.lockPrefix + schema)), 0));
        END $$;
        \(Self.limitLockWaits);

        \(body)
        COMMIT;

        """
    }

    private static func literal(_ text: String) -> String {
        "'" + text.split(separator: "'", omittingEmptySubsequences: false).joined(separator: "''") + "'"
    }
}
