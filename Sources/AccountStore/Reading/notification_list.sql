-- An index of each partition finds the notifications of a person or a jti. For all other filters PostgreSQL reads the index on
-- received_at, newest first, until there are enough rows.
SELECT
    jti, issued_at, received_at, recorded_at, team_id, app_id, sub, event_type, event_time, outcome, source,
    sessions_ended, verified_kid, NULL::text
FROM siwa.notifications
WHERE ($1::text IS NULL OR sub = $1)
    AND ($2::text IS NULL OR team_id = $2)
    AND ($3::text IS NULL OR app_id = $3)
    AND (cardinality($4::text[]) = 0 OR event_type = ANY ($4))
    AND ($5::text IS NULL OR outcome = $5)
    AND received_at >= $6
    AND received_at < $7
    AND ($9::text IS NULL OR source = $9)
    AND ($10::text IS NULL OR jti = $10)
ORDER BY received_at DESC
LIMIT $8
