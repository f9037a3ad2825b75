-- Deletes refresh tokens and names of people who revoked their consent after the sign-in that brought them, and refresh tokens of
-- deleted accounts, in a range of pages of both tables. There is no index for them, because a notification writes to neither
-- table. A row that another transaction has locked, or has replaced since, is left.
WITH due_token AS MATERIALIZED (
    SELECT t.account_id, t.client_id, t.obtained_at
    FROM siwa.apple_tokens AS t
    CROSS JOIN LATERAL (
        SELECT a.deleted_at FROM siwa.accounts AS a WHERE a.account_id = t.account_id OFFSET 0
    ) AS a
    CROSS JOIN LATERAL (
        SELECT c.revoked_at FROM siwa.consents AS c
        WHERE c.account_id = t.account_id AND c.app_id = t.app_id
        OFFSET 0
    ) AS c
    WHERE t.ctid >= ('(' || $1::bigint || ',0)')::tid
        AND t.ctid < ('(' || $1::bigint + $2::bigint || ',0)')::tid
        AND (a.deleted_at IS NOT NULL OR c.revoked_at >= t.obtained_at)
),
token AS (
    DELETE FROM siwa.apple_tokens AS t
    USING (
        SELECT k.account_id, k.client_id
        FROM due_token AS d
        CROSS JOIN LATERAL (
            SELECT k.account_id, k.client_id FROM siwa.apple_tokens AS k
            WHERE k.account_id = d.account_id AND k.client_id = d.client_id AND k.obtained_at = d.obtained_at
            FOR UPDATE SKIP LOCKED
        ) AS k
    ) AS o
    WHERE t.account_id = o.account_id AND t.client_id = o.client_id
    RETURNING true
),
due_name AS MATERIALIZED (
    SELECT n.account_id, n.app_id, n.captured_at
    FROM siwa.kept_names AS n
    CROSS JOIN LATERAL (
        SELECT c.revoked_at FROM siwa.consents AS c
        WHERE c.account_id = n.account_id AND c.app_id = n.app_id
        OFFSET 0
    ) AS c
    WHERE n.ctid >= ('(' || $1::bigint || ',0)')::tid
        AND n.ctid < ('(' || $1::bigint + $2::bigint || ',0)')::tid
        AND c.revoked_at >= n.captured_at
),
name AS (
    DELETE FROM siwa.kept_names AS n
    USING (
        SELECT k.account_id, k.app_id
        FROM due_name AS d
        CROSS JOIN LATERAL (
            SELECT k.account_id, k.app_id FROM siwa.kept_names AS k
            WHERE k.account_id = d.account_id AND k.app_id = d.app_id AND k.captured_at = d.captured_at
            FOR UPDATE SKIP LOCKED
        ) AS k
    ) AS o
    WHERE n.account_id = o.account_id AND n.app_id = o.app_id
    RETURNING true
)
SELECT
    (SELECT count(*) FROM token), (SELECT count(*) FROM name),
    greatest(pg_relation_size('siwa.apple_tokens'), pg_relation_size('siwa.kept_names'))
        / current_setting('block_size')::bigint
