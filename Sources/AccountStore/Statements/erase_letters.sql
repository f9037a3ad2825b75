-- Erases the bodies of dead letters about erased people. A letter for an app of another team is about a different person with
-- the same sub.
WITH doomed AS MATERIALIZED (
    SELECT l.id, l.status
    FROM siwa.accounts AS a
    JOIN siwa.dead_letters AS l ON l.sub = a.sub
    WHERE a.erased_at IS NOT NULL
        AND octet_length(l.body) > 0
        AND NOT EXISTS (
            SELECT FROM siwa.clients AS k WHERE k.client_id = l.aud AND k.team_id <> a.team_id
        )
    LIMIT $1
    FOR UPDATE OF l SKIP LOCKED
),
erased AS (
    UPDATE siwa.dead_letters AS l
    SET body = '',
        status = CASE l.status WHEN 'open' THEN 'discarded' ELSE l.status END,
        resolved_at = coalesce(l.resolved_at, now()),
        resolved_by = coalesce(l.resolved_by, 'siwad'),
        note = CASE l.status WHEN 'open' THEN $2 ELSE l.note END
    FROM doomed AS d
    WHERE l.id = d.id
    RETURNING l.id
)
SELECT (SELECT count(*) FROM erased), (SELECT count(*) FROM doomed WHERE status = 'open')
