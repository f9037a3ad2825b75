-- Deletes sessions in a range of pages. A session that was opened after the cutoff cannot have ended before it and is skipped.
-- An ended or expired session never becomes live again, so rows are locked only after they are found to be due. A row that another
-- transaction has locked is left for the next time.
WITH due AS MATERIALIZED (
    SELECT v.session_id
    FROM siwa.account_sessions AS c
    CROSS JOIN LATERAL (
        SELECT * FROM siwa.sessions AS s WHERE s.session_id = c.session_id OFFSET 0
    ) AS v
    WHERE c.ctid >= ('(' || $2::bigint || ',0)')::tid
        AND c.ctid < ('(' || $2::bigint + $3::bigint || ',0)')::tid
        AND c.created_at < $1
        AND (v.ended_at < $1 OR v.expires_at < $1)
),
deleted AS (
    DELETE FROM siwa.account_sessions
    WHERE session_id = ANY (ARRAY(
        SELECT session_id FROM siwa.account_sessions
        WHERE session_id = ANY (ARRAY(SELECT session_id FROM due))
        FOR UPDATE SKIP LOCKED
    ))
    RETURNING true
)
SELECT
    (SELECT count(*) FROM deleted),
    pg_relation_size('siwa.account_sessions') / current_setting('block_size')::bigint
