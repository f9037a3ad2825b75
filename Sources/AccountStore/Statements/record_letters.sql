-- Stores dead letters. If a token occurs twice in a batch, its first letter is stored, because one INSERT ... ON CONFLICT cannot
-- update a row twice.
--
-- The message to the write-ahead log makes the commit wait for the disk and for standbys even if no row is written: the commit
-- that stored the notification may be unconfirmed.
WITH input AS MATERIALIZED (
    SELECT DISTINCT ON (n.token_digest) n.*
    FROM unnest(
        $1::timestamptz[], $2::text[], $3::text[], $4::bytea[], $5::bytea[], $6::text[], $7::text[], $8::text[],
        $9::text[], $10::text[]
    ) WITH ORDINALITY AS n (
        received_at, reason, detail, body, token_digest, jti, aud, sub, event_type, verified_kid, position
    )
    WHERE (SELECT pg_logical_emit_message(true, 'siwad', ''::text)) IS NOT NULL
        AND (n.jti IS NULL OR NOT EXISTS (SELECT FROM siwa.notifications AS k WHERE k.jti = n.jti COLLATE "C"))
    ORDER BY n.token_digest, n.position
),
kept AS (
    INSERT INTO siwa.dead_letters AS d (
        received_at, last_received_at, reason, detail, body, token_digest, jti, aud, sub, event_type, verified_kid,
        verified_at
    )
    SELECT
        received_at, received_at, reason, detail, body, token_digest, jti, aud, sub, event_type, verified_kid,
        CASE WHEN verified_kid IS NOT NULL THEN received_at END
    FROM input
    ORDER BY token_digest
    ON CONFLICT (token_digest) WHERE status = 'open' DO UPDATE SET
        deliveries = d.deliveries + 1,
        last_received_at = greatest(d.last_received_at, excluded.last_received_at)
    RETURNING d.token_digest, d.deliveries, d.id
)
SELECT position, id FROM input JOIN kept USING (token_digest) WHERE deliveries = 1
