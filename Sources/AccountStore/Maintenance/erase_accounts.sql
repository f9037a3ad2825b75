-- Erases accounts in a range of pages. Returns the number of accounts and tokens erased, the page of the last erased account and
-- the number of pages. There is no index for due accounts, because each deletion would then write to every index of accounts.
-- A row that another transaction has locked is left for the next time.
WITH due AS MATERIALIZED (
    SELECT ctid AS place, account_id, sub, team_id
    FROM siwa.accounts
    WHERE ctid >= ('(' || $4::bigint || ',0)')::tid
        AND ctid < ('(' || $4::bigint + $5::bigint || ',0)')::tid
        AND deleted_at <= $1
        AND erased_at IS NULL
    LIMIT $3
    FOR UPDATE SKIP LOCKED
),
account AS (
    UPDATE siwa.accounts AS a
    SET email = NULL,
        email_is_private = NULL,
        email_observed_at = 'infinity',
        erased_at = $2,
        revision = a.revision + 1
    FROM due AS d
    WHERE a.account_id = d.account_id
    RETURNING a.account_id
),
token AS (
    UPDATE siwa.notifications AS n
    SET jws = NULL
    FROM due AS d
    WHERE n.sub = d.sub AND n.team_id = d.team_id AND n.jws IS NOT NULL
    RETURNING n.jti
)
SELECT
    (SELECT count(*) FROM account), (SELECT count(*) FROM token),
    (SELECT (max(place)::text::point)[0]::bigint FROM due),
    pg_relation_size('siwa.accounts') / current_setting('block_size')::bigint
