-- The objects of the schema siwa with their definitions in PostgreSQL's words, or digests of bodies. An index of the monthly
-- partitions is one object: its definition has a note if only some of the months have it.
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
        'type', c.relname,
        string_agg(a.attname || ' ' || format_type(a.atttypid, a.atttypmod), ', ' ORDER BY a.attnum)
    FROM pg_class AS c
    JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
    WHERE c.relnamespace = 'siwa'::regnamespace AND c.relkind = 'c'
    GROUP BY c.relname
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
