SELECT
    team_id, sub, app_id, state, authorized_at, revoked_at, deleted_at, email, email_is_private,
    email_deliverable
FROM siwa.account_states
WHERE ($1::text IS NULL OR sub = $1)
    AND ($2::text IS NULL OR team_id = $2)
    AND ($3::text IS NULL OR app_id = $3)
    AND ($4::text IS NULL OR state = $4)
ORDER BY account_id DESC, app_id
LIMIT $5
