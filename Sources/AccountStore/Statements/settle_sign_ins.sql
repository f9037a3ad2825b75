-- Settles a batch of sign-ins with all their effects: one statement, one round trip.
--
-- The arrays have one element per sign-in, each of another person. One that is reserved has an id. The others have no code to
-- trade: instead of being reserved and then changed, their row is written once, with the values from $14 on.
--
-- Returns the sign-ins that it settled, as siwa.settle_sign_in does. One that is not returned is unchanged, and the functions for
-- a single sign-in decide it: refusals, repeated requests, and what is rare, such as a consent that was revoked before, or a
-- sign-in that changes whether mail is deliverable.
--
-- Correctness:
-- - The rows of a person are locked before they are judged, account before consent, as every writer locks. If another
--   transaction holds one, SKIP LOCKED leaves the sign-in out, so that it delays no other.
-- - Rows are updated by ctid. One that changed between the snapshot and its lock is not found; then the statement fails with
--   40001. A sign-in is locked by its update only, and some minor releases of PostgreSQL apply an update by ctid to the newer
--   version of a row that it waited for. So the row must also have the version (xmin) of the snapshot.
-- - If another session inserts the same person, the statement fails with a unique violation, or with 55P03 if that takes too
--   long. A failure has no effect.
-- - A sign-in that is not the latest may update neither account nor consent. It is judged by what the locks return: in READ
--   COMMITTED, that is the newest version of each row, also if it is newer than the snapshot.
--
-- Speed: as in record_notifications.sql.
WITH judged AS MATERIALIZED (
    SELECT
        w.place, w.version, w.client_id, w.app_id, w.team_id, w.sub, w.account_id AS known_account, w.account_place,
        w.consent_place, w.authorized_at, w.signed_in_at, w.real_user_status, w.session_id, w.expires_at, w.code_sealed,
        w.code_due_at, w.presented_digest, w.nonce_digest, w.flow, w.caller, w.attempt, w.platform, w.model, w.label,
        w.readdresses,
        w.authorized_at IS NULL OR w.authorized_at < w.signed_in_at AS is_latest,
        CASE WHEN w.readdresses THEN w.email ELSE w.was_email END AS email,
        CASE WHEN w.readdresses THEN w.email_is_private ELSE w.was_email_is_private END AS email_is_private,
        siwa.email_state(w.forwarding_disabled_at, w.forwarding_enabled_at, w.was_email_is_private) = 'deliverable'
            AS is_deliverable,
        w.brings_name,
        CASE WHEN w.brings_name THEN w.given ELSE w.kept_given END AS given,
        CASE WHEN w.brings_name THEN w.family ELSE w.kept_family END AS family,
        CASE WHEN w.brings_name THEN w.signed_in_at ELSE w.captured_at END AS captured_at,
        CASE
            -- With the state among the conditions, an empty table would be searched by the partial index of valid tokens.
            WHEN w.refresh = 'none' AND (
                SELECT t.state FROM siwa.apple_tokens AS t
                WHERE t.account_id = w.account_id AND t.client_id = w.client_id
            ) = 'valid' THEN 'kept'
            ELSE w.refresh
        END AS refresh
    FROM (
        SELECT
            f.*, s.place, s.version, k.client_id, k.app_id, k.team_id,
            a.place AS account_place, a.account_id, a.deleted_at, a.forwarding_disabled_at, a.forwarding_enabled_at,
            a.email AS was_email, a.email_is_private AS was_email_is_private,
            u.is_token_used, v.is_nonce_used, coalesce(f.email <> '', false) AND siwa.observation_wins(
                f.signed_in_at, f.email, f.email_is_private, a.email_observed_at, a.email, a.email_is_private
            ) AS readdresses,
            c.place AS consent_place, c.authorized_at, c.revoked_at,
            n.given AS kept_given, n.family AS kept_family, n.captured_at,
            coalesce(f.given <> '' OR f.family <> '', false)
                AND (n.captured_at IS NULL OR n.captured_at <= f.signed_in_at) AS brings_name
        FROM (
            SELECT
                unnest($1::bigint[]) AS sign_in_id, unnest($2::text[]) COLLATE "C" AS sub, unnest($3::text[]) AS email,
                unnest($4::boolean[]) AS email_is_private, unnest($5::timestamptz[]) AS signed_in_at,
                unnest($6::text[]) AS given, unnest($7::text[]) AS family, unnest($8::text[]) AS real_user_status,
                unnest($9::text[]) AS refresh, unnest($10::bytea[]) AS code_sealed,
                unnest($11::timestamptz[]) AS code_due_at, unnest($12::text[]) COLLATE "C" AS session_id,
                unnest($13::timestamptz[]) AS expires_at, unnest($14::bytea[]) AS presented_digest,
                unnest($15::bytea[]) AS nonce_digest, unnest($16::text[]) COLLATE "C" AS new_client_id,
                unnest($17::text[]) AS flow, unnest($18::text[]) AS caller, unnest($19::bytea[]) AS attempt,
                unnest($20::text[]) AS platform, unnest($21::text[]) AS model, unnest($22::text[]) AS label
        ) AS f
        LEFT JOIN LATERAL (
            SELECT s.ctid AS place, s.xmin AS version, s.client_id, s.app_id FROM siwa.sign_ins AS s
            WHERE s.sign_in_id = f.sign_in_id AND s.settled_at IS NULL
            OFFSET 0
        ) AS s ON true
        CROSS JOIN LATERAL (
            SELECT k.client_id, coalesce(s.app_id, k.app_id) AS app_id, k.team_id FROM siwa.clients AS k
            WHERE k.client_id = coalesce(s.client_id, f.new_client_id)
            OFFSET 0
        ) AS k
        LEFT JOIN LATERAL (
            SELECT true AS is_token_used FROM siwa.sign_ins AS s WHERE s.presented_digest = f.presented_digest OFFSET 0
        ) AS u ON true
        LEFT JOIN LATERAL (
            SELECT true AS is_nonce_used FROM siwa.sign_ins AS s
            WHERE s.client_id = f.new_client_id AND s.nonce_digest = f.nonce_digest
            OFFSET 0
        ) AS v ON true
        LEFT JOIN LATERAL (
            SELECT
                a.ctid AS place, a.account_id, a.deleted_at, a.forwarding_disabled_at, a.forwarding_enabled_at,
                a.email_observed_at, a.email, a.email_is_private
            FROM siwa.accounts AS a
            WHERE a.sub = f.sub AND a.team_id = k.team_id
            FOR NO KEY UPDATE SKIP LOCKED
        ) AS a ON true
        LEFT JOIN LATERAL (
            SELECT c.ctid AS place, c.authorized_at, c.revoked_at FROM siwa.consents AS c
            WHERE c.account_id = a.account_id AND c.app_id = k.app_id
            FOR NO KEY UPDATE SKIP LOCKED
        ) AS c ON true
        LEFT JOIN LATERAL (
            SELECT n.given, n.family, n.captured_at FROM siwa.kept_names AS n
            WHERE n.account_id = a.account_id AND n.app_id = k.app_id
            OFFSET 0
        ) AS n ON true
        OFFSET 0
    ) AS w
    WHERE w.deleted_at IS NULL
        AND w.revoked_at IS NULL
        AND w.signed_in_at <= clock_timestamp() + interval '5 minutes'
        AND octet_length(w.sub) <= 1024
        AND w.is_token_used IS NULL
        AND w.is_nonce_used IS NULL
        -- Another process has taken it over, or has settled it.
        AND (w.place IS NOT NULL OR w.presented_digest IS NOT NULL)
        -- Not found: it does not exist, or another transaction has locked it.
        AND (
            w.account_id IS NOT NULL
            OR NOT EXISTS (SELECT FROM siwa.accounts AS a WHERE a.sub = w.sub AND a.team_id = w.team_id)
        )
        AND (
            w.consent_place IS NOT NULL
            OR NOT EXISTS (SELECT FROM siwa.consents AS c WHERE c.account_id = w.account_id AND c.app_id = w.app_id)
        )
        AND (
            NOT w.readdresses
            OR (
                octet_length(w.email) <= 1024
                AND siwa.email_state(w.forwarding_disabled_at, w.forwarding_enabled_at, w.was_email_is_private)
                    = siwa.email_state(w.forwarding_disabled_at, w.forwarding_enabled_at, w.email_is_private)
            )
        )
        AND (
            w.session_id IS NULL
            OR (
                (w.expires_at IS NULL OR w.expires_at > w.signed_in_at)
                AND NOT EXISTS (SELECT FROM siwa.account_sessions AS o WHERE o.session_id = w.session_id)
            )
        )
),
moved_account AS (
    UPDATE siwa.accounts AS a
    SET email = j.email, email_is_private = j.email_is_private, email_observed_at = j.signed_in_at, revision = a.revision + 1
    FROM judged AS j
    WHERE j.readdresses AND a.ctid = j.account_place
    RETURNING true
),
new_account AS (
    INSERT INTO siwa.accounts AS a (team_id, sub, email, email_is_private, email_observed_at)
    SELECT
        team_id, sub, email, CASE WHEN readdresses THEN email_is_private END, CASE WHEN readdresses THEN signed_in_at END
    FROM judged
    WHERE known_account IS NULL
    RETURNING a.account_id, a.team_id, a.sub
),
moved_consent AS (
    UPDATE siwa.consents AS c
    SET authorized_at = j.signed_in_at, revision = c.revision + 1
    FROM judged AS j
    WHERE j.is_latest AND c.ctid = j.consent_place
    RETURNING true
),
reserved AS (
    UPDATE siwa.sign_ins AS s
    SET settled_at = clock_timestamp(),
        lease_until = NULL,
        signed_in_at = j.signed_in_at,
        account_id = coalesce(
            j.known_account, (SELECT i.account_id FROM new_account AS i WHERE i.sub = j.sub AND i.team_id = j.team_id)
        ),
        session_id = j.session_id,
        new_account = j.authorized_at IS NULL,
        real_user_status = j.real_user_status,
        refresh = j.refresh,
        code_sealed = j.code_sealed,
        code_due_at = j.code_due_at
    FROM judged AS j
    WHERE s.ctid = j.place AND s.xmin = j.version
    RETURNING s.sign_in_id, s.account_id, j.*
),
direct AS (
    INSERT INTO siwa.sign_ins AS s (
        presented_digest, nonce_digest, client_id, app_id, flow, caller, attempt, device, settled_at, signed_in_at, account_id,
        session_id, new_account, real_user_status, refresh
    )
    SELECT
        j.presented_digest, j.nonce_digest, j.client_id, j.app_id, j.flow, j.caller, j.attempt,
        CASE
            WHEN num_nonnulls(j.platform, j.model, j.label) > 0
            THEN jsonb_strip_nulls(jsonb_build_object('platform', j.platform, 'model', j.model, 'label', j.label))
        END,
        clock_timestamp(), j.signed_in_at,
        coalesce(
            j.known_account, (SELECT i.account_id FROM new_account AS i WHERE i.sub = j.sub AND i.team_id = j.team_id)
        ),
        j.session_id, j.authorized_at IS NULL, j.real_user_status, j.refresh
    FROM judged AS j
    WHERE j.place IS NULL
    RETURNING s.sign_in_id, s.account_id, s.presented_digest
),
settled AS (
    SELECT w.*, w.authorized_at IS NULL AS new_account
    FROM (
        SELECT * FROM reserved
        UNION ALL
        SELECT i.sign_in_id, i.account_id, j.* FROM direct AS i JOIN judged AS j USING (presented_digest)
    ) AS w
),
new_consent AS (
    INSERT INTO siwa.consents (account_id, app_id, authorized_at)
    SELECT account_id, app_id, signed_in_at FROM settled WHERE consent_place IS NULL
),
changed AS (
    INSERT INTO siwa.account_changes (account_id, app_id, facet, from_state, to_state, event_time)
    SELECT account_id, app_id, 'consent', 'unknown', 'authorized', signed_in_at FROM settled WHERE new_account
),
name AS (
    INSERT INTO siwa.kept_names AS n (account_id, app_id, given, family, captured_at)
    SELECT account_id, app_id, given, family, captured_at FROM settled WHERE brings_name
    ON CONFLICT ON CONSTRAINT kept_names_pkey DO UPDATE
    SET given = excluded.given, family = excluded.family, captured_at = excluded.captured_at
    WHERE n.captured_at <= excluded.captured_at
),
opened AS (
    INSERT INTO siwa.account_sessions (session_id, account_id, app_id, created_at, signed_in_at, expires_at)
    SELECT session_id, account_id, app_id, signed_in_at, signed_in_at, expires_at FROM settled WHERE session_id IS NOT NULL
)
-- The columns of siwa.sign_in_answer.
SELECT
    'settled', sign_in_id, client_id, app_id, team_id, account_id, sub, 'authorized', new_account, signed_in_at, email,
    email_is_private, is_deliverable, given, family, captured_at, real_user_status, refresh, NULL::text, session_id,
    expires_at IS NULL OR expires_at > now(), CASE WHEN session_id IS NOT NULL THEN signed_in_at END, expires_at
FROM settled
WHERE (
    SELECT CASE
        WHEN cardinality(ARRAY(SELECT true FROM settled)) <> cardinality(ARRAY(SELECT true FROM judged))
            OR cardinality(ARRAY(SELECT true FROM moved_account))
                <> cardinality(ARRAY(SELECT true FROM judged WHERE readdresses AND known_account IS NOT NULL))
            OR cardinality(ARRAY(SELECT true FROM moved_consent))
                <> cardinality(ARRAY(SELECT true FROM judged WHERE is_latest AND consent_place IS NOT NULL))
        THEN siwa.refuse_stale_snapshot()
        ELSE true
    END
)
