SELECT EXISTS (
    SELECT FROM pg_inherits AS i JOIN pg_class AS c ON c.oid = i.inhrelid
    WHERE i.inhparent = 'siwa.notifications'::regclass
        AND c.relname = 'notifications_y' || to_char(m.month, 'YYYY') || 'm' || to_char(m.month, 'MM')
)
FROM (
    SELECT date_trunc('month', now() AT TIME ZONE 'UTC') + n * interval '1 month' AS month
    FROM generate_series(0, 2) AS n
    ORDER BY n
) AS m
