-- Erases accounts in a range of pages, with the names, refresh tokens and devices of their sign-ins. Returns the number of accounts and tokens erased, the page of the last erased account and
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
),
name AS (
    DELETE FROM siwa.kept_names AS n USING due AS d WHERE n.account_id = d.account_id
),
refresh_token AS (
    DELETE FROM siwa.apple_tokens AS t USING due AS d WHERE t.account_id = d.account_id
),
device AS (
    UPDATE siwa.sign_ins AS s
    SET device = NULL
    FROM due AS d
    -- Others lock the sign-in before the account, so this must not wait for it.
    CROSS JOIN LATERAL (
        SELECT k.sign_in_id FROM siwa.sign_ins AS k
        WHERE k.account_id = d.account_id AND k.device IS NOT NULL
        FOR NO KEY UPDATE SKIP LOCKED
    ) AS k
    WHERE s.sign_in_id = k.sign_in_id
)
SELECT
    (SELECT count(*) FROM account), (SELECT count(*) FROM token),
    (SELECT (max(place)::text::point)[0]::bigint FROM due),
    pg_relation_size('siwa.accounts') / current_setting('block_size')::bigint
