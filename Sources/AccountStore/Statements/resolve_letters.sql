-- "id = ANY" in addition to the join: the writer's settings exclude nested loops, and only this condition finds the rows by
-- their index.
UPDATE siwa.dead_letters AS d
SET status = 'replayed', outcome = n.outcome, jti = coalesce(n.jti, d.jti), aud = coalesce(n.aud, d.aud),
    sub = coalesce(n.sub, d.sub), event_type = coalesce(n.event_type, d.event_type),
    verified_kid = coalesce(d.verified_kid, n.verified_kid),
    verified_at = coalesce(d.verified_at, CASE WHEN n.verified_kid IS NOT NULL THEN now() END),
    resolved_at = now(), resolved_by = $8, note = $9, attempts = d.attempts + 1
FROM unnest($1::bigint[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[])
    AS n (id, outcome, jti, aud, sub, event_type, verified_kid)
WHERE d.id = ANY ($1) AND d.id = n.id
