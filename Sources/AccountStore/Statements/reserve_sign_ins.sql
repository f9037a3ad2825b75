-- Reserves a batch of sign-ins for 15 seconds: one statement, one round trip.
--
-- The arrays have one element per sign-in. Returns the id of each sign-in that it reserves. One that is not returned is
-- unchanged: SignIns.reserve decides it alone, because its token, nonce or session id is in use, or its person or client may not
-- sign in, or its time is ahead.
--
-- Tables are read in lateral subqueries, which can only be nested loops over an index, so that the plan has the same shape for
-- empty and for large tables.
INSERT INTO siwa.sign_ins AS s (
    presented_digest, nonce_digest, code_digest, client_id, app_id, flow, caller, attempt, lease_until, session_id, device
)
SELECT
    f.presented_digest, f.nonce_digest, f.code_digest, f.client_id, k.app_id, f.flow, f.caller, f.attempt,
    clock_timestamp() + interval '15 s', f.session_id,
    CASE
        WHEN num_nonnulls(f.platform, f.model, f.label) > 0
        THEN jsonb_strip_nulls(jsonb_build_object('platform', f.platform, 'model', f.model, 'label', f.label))
    END
FROM (
    SELECT
        unnest($1::bytea[]) AS presented_digest, unnest($2::bytea[]) AS nonce_digest, unnest($3::bytea[]) AS code_digest,
        unnest($4::text[]) COLLATE "C" AS client_id, unnest($5::text[]) AS flow, unnest($6::text[]) AS caller,
        unnest($7::bytea[]) AS attempt, unnest($8::text[]) COLLATE "C" AS sub, unnest($9::timestamptz[]) AS issued_at,
        unnest($10::text[]) COLLATE "C" AS session_id, unnest($11::text[]) AS platform,
        unnest($12::text[]) AS model, unnest($13::text[]) AS label
) AS f
CROSS JOIN LATERAL (
    SELECT k.app_id, k.team_id FROM siwa.clients AS k WHERE k.client_id = f.client_id OFFSET 0
) AS k
LEFT JOIN LATERAL (
    SELECT a.account_id, a.deleted_at FROM siwa.accounts AS a WHERE a.sub = f.sub AND a.team_id = k.team_id OFFSET 0
) AS a ON true
LEFT JOIN LATERAL (
    SELECT c.revoked_at FROM siwa.consents AS c WHERE c.account_id = a.account_id AND c.app_id = k.app_id OFFSET 0
) AS c ON true
LEFT JOIN LATERAL (
    SELECT true AS is_taken FROM siwa.account_sessions AS o WHERE o.session_id = f.session_id OFFSET 0
) AS o ON true
WHERE (f.issued_at > clock_timestamp() + interval '5 minutes') IS NOT TRUE
    AND a.deleted_at IS NULL AND (c.revoked_at IS NULL OR c.revoked_at < f.issued_at) AND o.is_taken IS NULL
ON CONFLICT DO NOTHING
RETURNING s.presented_digest, s.sign_in_id
