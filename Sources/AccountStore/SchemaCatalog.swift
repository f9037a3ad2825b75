import AppleTokens
package import Postgres
import Schema

/// The objects of the schema `siwa`, as PostgreSQL's catalogs describe them.
package struct SchemaCatalog: Sendable, Equatable {
    /// One object.
    package struct Object: Sendable, Hashable, Comparable, CustomStringConvertible {
        /// `table`, `column`, `constraint`, `index`, `trigger`, `domain`, `function`, `view`, `view body`, `function body`.
        package let kind: String
        /// Its name within the schema: `accounts.email`.
        package let name: String

        /// `column accounts.email`
        package var description: String { "\(kind) \(name)" }

        /// By name, then kind.
        package static func < (one: Object, other: Object) -> Bool {
            (one.name, one.kind) < (other.name, other.kind)
        }
    }

    /// The major version of PostgreSQL that described them.
    package let postgresVersion: Int
    /// What each of them is.
    package let definitions: [Object: String]

    /// The catalog that the migrations of this binary make.
    package static let expected = SchemaCatalog(text: Schema.catalog)

    /// Reads the catalog of a database. Call it in a transaction.
    package init(readFrom transaction: borrowing Session) throws(PostgresError) {
        // Names are written out where the path doesn't lead to them.
        try transaction.execute(script: "SET LOCAL search_path = pg_catalog")
        let rows = try transaction.execute(Self.read)
        var definitions: [Object: String] = [:]
        for row in 0..<rows.count {
            let object = Object(kind: try rows.string(row, 0), name: try rows.string(row, 1))
            definitions[object] = try rows.string(row, 2)
        }
        self.definitions = definitions
        postgresVersion = Int(try transaction.execute(Self.version).int32(0, 0)) / 10_000
    }

    /// Reads what ``text`` writes.
    package init(text: String) {
        var version = 0
        var definitions: [Object: String] = [:]
        for line in text.split(separator: "\n") {
            let parts = line.split(separator: "\t", omittingEmptySubsequences: false).map(String.init)
            if parts.count == 3 { definitions[Object(kind: parts[0], name: parts[1])] = parts[2] }
            if parts.count == 2, parts[0] == "postgres" { version = Int(parts[1]) ?? 0 }
        }
        self.definitions = definitions
        postgresVersion = version
    }

    /// A line for each object, in order, below the version of PostgreSQL.
    package var text: String {
        let lines = definitions.sorted { $0.key < $1.key }.map { "\($0.key.kind)\t\($0.key.name)\t\($0.value)\n" }
        return "postgres\t\(postgresVersion)\n" + lines.joined()
    }

    private static let version = Statement(once: "SELECT current_setting('server_version_num')::integer")

    /// The partitions of the months are one object each per index: only if all of them have it, it is what it should be.
    /// Definitions are PostgreSQL's own words, except for bodies, of which a digest will do.
    private static let read = Statement(
        once: #"""
            WITH relation AS (
                SELECT
                    c.oid, c.relkind, c.relispartition, c.reloptions,
                    CASE WHEN c.relispartition THEN 'notifications_month' ELSE c.relname END AS name
                FROM pg_class AS c
                WHERE c.relnamespace = 'siwa'::regnamespace AND c.relkind IN ('r', 'p', 'v', 'm')
            ),
            partitions AS (
                SELECT count(*) AS number FROM relation WHERE relispartition
            ),
            object AS (
                SELECT
                    CASE WHEN relkind IN ('v', 'm') THEN 'view' ELSE 'table' END AS kind,
                    name::text,
                    CASE relkind WHEN 'p' THEN 'partitioned' WHEN 'm' THEN 'materialized' ELSE 'plain' END
                        || coalesce(' with ' || (SELECT string_agg(o, ', ' ORDER BY o) FROM unnest(reloptions) AS o), '')
                        AS definition
                FROM relation
                WHERE NOT relispartition
                UNION ALL
                SELECT 'view body', name, md5(pg_get_viewdef(oid)) FROM relation WHERE relkind IN ('v', 'm')
                UNION ALL
                SELECT
                    'column',
                    r.name || '.' || a.attname,
                    concat_ws(
                        ' ', format_type(a.atttypid, a.atttypmod),
                        CASE WHEN a.attcollation <> t.typcollation THEN 'collate ' || l.collname END,
                        CASE WHEN a.attnotnull THEN 'not null' END,
                        CASE a.attidentity WHEN 'a' THEN 'identity always' WHEN 'd' THEN 'identity by default' END,
                        CASE a.attgenerated WHEN 's' THEN 'generated ' || pg_get_expr(d.adbin, d.adrelid)
                            ELSE 'default ' || pg_get_expr(d.adbin, d.adrelid) END
                    )
                FROM relation AS r
                JOIN pg_attribute AS a ON a.attrelid = r.oid AND a.attnum > 0 AND NOT a.attisdropped
                JOIN pg_type AS t ON t.oid = a.atttypid
                LEFT JOIN pg_collation AS l ON l.oid = a.attcollation
                LEFT JOIN pg_attrdef AS d ON d.adrelid = r.oid AND d.adnum = a.attnum
                WHERE NOT r.relispartition
                UNION ALL
                SELECT 'constraint', r.name || '.' || o.conname, pg_get_constraintdef(o.oid)
                FROM relation AS r
                JOIN pg_constraint AS o ON o.conrelid = r.oid
                WHERE NOT r.relispartition AND o.contype <> 'n'
                UNION ALL
                SELECT 'index', r.name || '.' || i.relname, pg_get_indexdef(i.oid)
                FROM relation AS r
                JOIN pg_index AS x ON x.indrelid = r.oid
                JOIN pg_class AS i ON i.oid = x.indexrelid
                WHERE NOT r.relispartition
                    AND NOT EXISTS (SELECT FROM pg_constraint AS o WHERE o.conindid = x.indexrelid AND o.conrelid = r.oid)
                UNION ALL
                SELECT 'index', 'notifications_month.' || p.name, p.definition || CASE WHEN count(*) < n.number THEN
                    format(' in %s of %s months', count(*), n.number) ELSE '' END
                FROM partitions AS n
                CROSS JOIN relation AS r
                JOIN pg_class AS c USING (oid)
                JOIN pg_index AS x ON x.indrelid = r.oid
                JOIN pg_class AS i ON i.oid = x.indexrelid
                CROSS JOIN LATERAL (
                    SELECT
                        replace(i.relname, c.relname, 'notifications_month') AS name,
                        replace(pg_get_indexdef(i.oid), c.relname, 'notifications_month') AS definition
                ) AS p
                WHERE r.relispartition
                GROUP BY p.name, p.definition, n.number
                UNION ALL
                SELECT 'trigger', r.name || '.' || g.tgname, pg_get_triggerdef(g.oid)
                FROM relation AS r
                JOIN pg_trigger AS g ON g.tgrelid = r.oid
                WHERE NOT r.relispartition AND NOT g.tgisinternal
                UNION ALL
                SELECT
                    'domain',
                    d.typname,
                    concat_ws(
                        ' ', format_type(d.typbasetype, d.typtypmod), 'collate ' || l.collname,
                        (SELECT string_agg(pg_get_constraintdef(o.oid), ' ' ORDER BY o.conname) FROM pg_constraint AS o
                            WHERE o.contypid = d.oid AND o.contype <> 'n')
                    )
                FROM pg_type AS d
                LEFT JOIN pg_collation AS l ON l.oid = d.typcollation
                WHERE d.typnamespace = 'siwa'::regnamespace AND d.typtype = 'd'
                UNION ALL
                SELECT
                    'function',
                    f.name,
                    concat_ws(
                        ' ', '(' || pg_get_function_arguments(p.oid) || ')', 'returns', pg_get_function_result(p.oid), l.lanname,
                        CASE p.provolatile WHEN 'i' THEN 'immutable' WHEN 's' THEN 'stable' ELSE 'volatile' END,
                        CASE WHEN p.prosecdef THEN 'security definer' END,
                        'set ' || array_to_string(p.proconfig, ', '),
                        CASE WHEN p.prosqlbody IS NULL THEN 'md5 ' || md5(p.prosrc) END
                    )
                FROM pg_proc AS p
                JOIN pg_language AS l ON l.oid = p.prolang
                CROSS JOIN LATERAL (SELECT format('%s(%s)', p.proname, oidvectortypes(p.proargtypes))) AS f (name)
                WHERE p.pronamespace = 'siwa'::regnamespace AND p.prokind IN ('f', 'p')
                UNION ALL
                SELECT
                    'function body', format('%s(%s)', p.proname, oidvectortypes(p.proargtypes)),
                    md5(pg_get_function_sqlbody(p.oid))
                FROM pg_proc AS p
                WHERE p.pronamespace = 'siwa'::regnamespace AND p.prokind IN ('f', 'p') AND p.prosqlbody IS NOT NULL
            )
            SELECT kind, name, regexp_replace(definition, '\s+', ' ', 'g') FROM object
            """#
    )
}
