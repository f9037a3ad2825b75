SELECT
    team_id, sub, app_id, facet, from_state, to_state, event_time, recorded_at, jti, sessions_ended
FROM (
    SELECT *
    FROM siwa.account_history
    WHERE ($1::text IS NULL OR sub = $1)
        AND ($2::text IS NULL OR team_id = $2)
        AND ($3::text IS NULL OR app_id = $3)
        AND ($4::text IS NULL OR to_state = $4)
    ORDER BY change_id DESC
    LIMIT $5
) AS latest
ORDER BY change_id
