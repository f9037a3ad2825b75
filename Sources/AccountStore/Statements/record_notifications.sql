-- Records a batch of notifications with all their effects: one statement, one round trip, one transaction.
--
-- The arrays have one element per notification, ordered by person, then consent (BatchFacts). Each row has the values of its
-- notification, and the registers that the whole batch has for its person and consent. The first row of a person writes the
-- person, the first row of a consent writes the consent.
--
-- Correctness:
-- - least and greatest merge facts into registers, first within the batch, then with the stored rows. A row is written only if
--   a register moves.
-- - Changes are found by comparing the row in the snapshot with the result. A row is updated only if it still has the version
--   (xmin) of the snapshot. If another session changed it, the statement fails with 40001; if another session inserted it, with
--   a unique violation. The caller then executes the statement again.
-- - No two batches wait for each other in a circle. The condition at the end executes the parts in its order: it inserts people,
--   updates people, inserts consents, updates consents, each in the order of the arrays. An insertion may wait for an update, of
--   a row that is newer than its snapshot. An update waits for no insertion, because it only finds rows of its snapshot.
-- - The unique jti skips a notification that is already stored. Its facts are merged again, which changes nothing.
-- - An empty message is written to the write-ahead log. Without it, the commit of a batch of duplicates would wait neither for
--   the disk nor for standbys, although the commit that stored them first may be unconfirmed.
-- - The token of a person whose data were erased is not stored. The address register of that person is infinity, so no
--   observation moves it.
--
-- Speed, with Notifications.writerSettings:
-- - Tables are read in lateral subqueries, which can only be nested loops over an index. Rows are updated by ctid, without a
--   second search. The plan has the same shape for empty and for large tables.
-- - judged evaluates all notifications in one pass, and every part that writes reads its result.
-- - The arrays are unnested in a select list. In FROM, each array would be written to a tuplestore and read again. Tokens are
--   most of the bytes; they go from their array directly into the table.
-- - Starting the plan dominates the cost of a small batch: each plan node, column and repeated expression counts, and so does
--   each level that has a subquery in an expression.
-- - Nothing is sorted. Rows are locked and written in the order of the arrays.
WITH judged AS MATERIALIZED (
    SELECT
        b.opens_person AND b.account_id IS NULL AS is_new_account,
        b.opens_person AND b.account_id IS NOT NULL AND (
            b.deleted_at IS DISTINCT FROM b.was_deleted_at OR b.disables OR b.enables OR b.readdresses
        ) AS moves_account,
        b.opens_consent AND b.consent_place IS NULL AS is_new_consent,
        b.opens_consent AND b.consent_place IS NOT NULL
            AND b.revoked_at IS DISTINCT FROM b.was_revoked_at AS moves_consent,
        b.position, b.account_id, b.place, b.version, b.consent_place, b.consent_version,
        b.sub, b.team_id, b.app_id, b.deleted_at, b.disabled_at, b.enabled_at,
        CASE WHEN b.readdresses THEN b.observed_at ELSE b.was_observed_at END AS observed_at,
        CASE WHEN b.readdresses THEN b.email ELSE b.was_email END AS email,
        CASE WHEN b.readdresses THEN b.email_is_private ELSE b.was_email_is_private END AS email_is_private,
        b.revoked_at, b.was_revoked_at, b.authorized_at, b.is_erased, b.sessions_ended, b.email_was, b.email_is,
        b.jti, b.issued_at, b.received_at, b.event_time, b.event_type, b.verified_kid,
        -- A change has one cause in the batch: the notification that moved the register, or if both moved, the one that reports
        -- the resulting state; if none moved, the one with the new address. A repeated notification is never a cause.
        CASE b.event_type
            WHEN 'email-enabled' THEN
                b.deleted_at IS NULL AND b.email_was <> b.email_is
                AND CASE
                    WHEN b.enables THEN b.leads AND (b.email_is = 'deliverable' OR NOT b.disables)
                    ELSE b.provides_address AND NOT b.disables
                END
            WHEN 'email-disabled' THEN
                b.deleted_at IS NULL AND b.email_was <> b.email_is
                AND CASE
                    WHEN b.disables THEN b.leads AND (b.email_is = 'undeliverable' OR NOT b.enables)
                    ELSE b.provides_address AND NOT b.enables
                END
            WHEN 'consent-revoked' THEN
                b.leads AND b.deleted_at IS NULL
                AND (
                    siwa.consent_state(b.authorized_at, b.was_revoked_at)
                        <> siwa.consent_state(b.authorized_at, b.revoked_at)
                    OR b.sessions_ended > 0
                )
            -- Account deletions, in either spelling.
            ELSE b.leads AND b.was_deleted_at IS NULL
        END AS is_change,
        -- The row takes its address from this notification, and the address differs from the previous one.
        b.provides_address AND b.readdresses AND b.email IS DISTINCT FROM b.was_email AS readdresses,
        CASE b.event_type
            WHEN 'email-enabled' THEN
                b.deleted_at IS NOT NULL OR b.email_is <> 'deliverable' OR b.event_time < b.enabled_at
            WHEN 'email-disabled' THEN
                b.deleted_at IS NOT NULL OR b.email_is <> 'undeliverable' OR b.event_time < b.disabled_at
            WHEN 'consent-revoked' THEN
                b.deleted_at IS NOT NULL
                OR siwa.consent_state(b.authorized_at, b.revoked_at) = 'authorized'
                OR b.event_time < b.revoked_at
            ELSE false
        END AS is_superseded
    FROM (
        SELECT
            w.*,
            siwa.email_state(w.was_disabled_at, w.was_enabled_at, w.was_email_is_private) AS email_was,
            siwa.email_state(
                w.disabled_at, w.enabled_at,
                CASE WHEN w.readdresses THEN w.email_is_private ELSE w.was_email_is_private END
            ) AS email_is,
            w.disabled_at IS DISTINCT FROM w.was_disabled_at AS disables,
            w.enabled_at IS DISTINCT FROM w.was_enabled_at AS enables
        FROM (
            SELECT
                f.position, f.sub, f.team_id, f.app_id, f.opens_person, f.opens_consent, f.leads, f.provides_address,
                f.jti, f.issued_at, f.received_at, f.event_type, f.event_time, f.verified_kid,
                a.place, a.version, a.account_id, c.place AS consent_place, c.version AS consent_version,
                least(a.deleted_at, f.deleted_at) AS deleted_at, a.deleted_at AS was_deleted_at,
                greatest(a.forwarding_disabled_at, f.disabled_at) AS disabled_at,
                a.forwarding_disabled_at AS was_disabled_at,
                greatest(a.forwarding_enabled_at, f.enabled_at) AS enabled_at,
                a.forwarding_enabled_at AS was_enabled_at,
                greatest(c.revoked_at, f.revoked_at) AS revoked_at, c.revoked_at AS was_revoked_at, c.authorized_at,
                siwa.observation_wins(
                    f.observed_at, f.email, f.email_is_private, a.email_observed_at, a.email, a.email_is_private
                ) AS readdresses,
                f.observed_at, a.email_observed_at AS was_observed_at, f.email, a.email AS was_email,
                f.email_is_private, a.email_is_private AS was_email_is_private,
                a.erased_at IS NOT NULL AS is_erased, e.sessions_ended
            FROM (
                SELECT
                    generate_subscripts($1::text[], 1) AS position,
                    unnest($1::text[]) COLLATE "C" AS sub, unnest($2::text[]) COLLATE "C" AS team_id,
                    unnest($3::text[]) COLLATE "C" AS app_id,
                    unnest($4::boolean[]) AS opens_person, unnest($5::boolean[]) AS opens_consent,
                    unnest($6::timestamptz[]) AS deleted_at, unnest($7::timestamptz[]) AS disabled_at,
                    unnest($8::timestamptz[]) AS enabled_at, unnest($9::timestamptz[]) AS observed_at,
                    unnest($10::text[]) AS email, unnest($11::boolean[]) AS email_is_private,
                    unnest($12::timestamptz[]) AS revoked_at,
                    unnest($13::text[]) AS jti, unnest($14::timestamptz[]) AS issued_at,
                    unnest($15::timestamptz[]) AS received_at, unnest($16::text[]) AS event_type,
                    unnest($17::timestamptz[]) AS event_time, unnest($18::boolean[]) AS leads,
                    unnest($19::boolean[]) AS provides_address, unnest($20::text[]) AS verified_kid
            ) AS f
            LEFT JOIN LATERAL (
                SELECT
                    k.ctid AS place, k.xmin AS version, k.account_id, k.deleted_at,
                    k.forwarding_disabled_at, k.forwarding_enabled_at,
                    k.email_observed_at, k.email, k.email_is_private, k.erased_at
                FROM siwa.accounts AS k
                WHERE k.sub = f.sub COLLATE "C" AND k.team_id = f.team_id COLLATE "C"
                OFFSET 0
            ) AS a ON true
            LEFT JOIN LATERAL (
                SELECT k.ctid AS place, k.xmin AS version, k.authorized_at, k.revoked_at
                FROM siwa.consents AS k
                WHERE k.account_id = a.account_id AND k.app_id = f.app_id COLLATE "C"
                OFFSET 0
            ) AS c ON true
            CROSS JOIN LATERAL (
                -- Counts the live sessions that end: all of a deleted account; of a revoked consent, those whose sign-in is not later.
                SELECT CASE
                    WHEN f.leads AND a.deleted_at IS NULL AND CASE f.event_type
                        WHEN 'email-enabled' THEN false
                        WHEN 'email-disabled' THEN false
                        WHEN 'consent-revoked' THEN
                            f.deleted_at IS NULL AND (c.revoked_at IS NULL OR f.revoked_at > c.revoked_at)
                        ELSE true
                    END
                    THEN cardinality(ARRAY(
                        SELECT true
                        FROM siwa.consents AS k
                        CROSS JOIN LATERAL (
                            SELECT
                            FROM siwa.account_sessions AS s
                            WHERE s.account_id = k.account_id
                                AND s.app_id = k.app_id
                                AND s.closed_at IS NULL
                                AND (s.expires_at IS NULL OR s.expires_at > now())
                                AND (k.revoked_at IS NULL OR s.signed_in_at > k.revoked_at)
                                AND (f.event_type <> 'consent-revoked' OR s.signed_in_at <= f.revoked_at)
                            OFFSET 0
                        ) AS s
                        WHERE k.account_id = a.account_id
                            AND (f.event_type <> 'consent-revoked' OR k.app_id = f.app_id COLLATE "C")
                    ))
                    ELSE 0
                END AS sessions_ended
            ) AS e
            OFFSET 0
        ) AS w
    ) AS b
),
moved_account AS (
    UPDATE siwa.accounts AS a SET
        revision = a.revision + 1,
        deleted_at = j.deleted_at,
        forwarding_disabled_at = j.disabled_at,
        forwarding_enabled_at = j.enabled_at,
        email_observed_at = j.observed_at,
        email = j.email,
        email_is_private = j.email_is_private
    FROM judged AS j
    WHERE j.moves_account AND a.ctid = j.place AND a.xmin = j.version
    RETURNING true
),
moved_consent AS (
    UPDATE siwa.consents AS c SET
        revision = c.revision + 1,
        revoked_at = j.revoked_at
    FROM judged AS j
    WHERE j.moves_consent AND c.ctid = j.consent_place AND c.xmin = j.consent_version
    RETURNING true
),
new_account AS (
    INSERT INTO siwa.accounts AS a (
        sub, team_id, deleted_at, forwarding_disabled_at, forwarding_enabled_at, email_observed_at, email, email_is_private
    )
    SELECT sub, team_id, deleted_at, disabled_at, enabled_at, observed_at, email, email_is_private
    FROM judged
    WHERE is_new_account
    RETURNING a.account_id, a.sub, a.team_id
),
new_consent AS (
    INSERT INTO siwa.consents (account_id, app_id, revoked_at)
    SELECT
        coalesce(
            j.account_id, (SELECT i.account_id FROM new_account AS i WHERE i.sub = j.sub AND i.team_id = j.team_id)
        ),
        j.app_id, j.revoked_at
    FROM judged AS j
    WHERE j.is_new_consent
    RETURNING true
),
changed AS (
    INSERT INTO siwa.account_changes (account_id, app_id, facet, from_state, to_state, event_time, jti, sessions_ended)
    SELECT
        coalesce(
            j.account_id, (SELECT i.account_id FROM new_account AS i WHERE i.sub = j.sub AND i.team_id = j.team_id)
        ),
        j.app_id,
        CASE j.event_type
            WHEN 'email-enabled' THEN 'email'
            WHEN 'email-disabled' THEN 'email'
            WHEN 'consent-revoked' THEN 'consent'
            ELSE 'account'
        END,
        CASE j.event_type
            WHEN 'email-enabled' THEN j.email_was
            WHEN 'email-disabled' THEN j.email_was
            WHEN 'consent-revoked' THEN siwa.consent_state(j.authorized_at, j.was_revoked_at)
            ELSE 'active'
        END,
        CASE j.event_type
            WHEN 'email-enabled' THEN j.email_is
            WHEN 'email-disabled' THEN j.email_is
            WHEN 'consent-revoked' THEN siwa.consent_state(j.authorized_at, j.revoked_at)
            ELSE 'deleted'
        END,
        j.event_time, j.jti, j.sessions_ended
    FROM judged AS j
    WHERE j.is_change
)
INSERT INTO siwa.notifications (
    jti, issued_at, received_at, event_time, sessions_ended, team_id, app_id, sub, event_type, outcome, source,
    verified_kid, jws
)
SELECT
    jti, issued_at, received_at, event_time, sessions_ended, team_id, app_id, sub, event_type,
    CASE WHEN is_change OR readdresses THEN 'applied' WHEN is_superseded THEN 'superseded' ELSE 'unchanged' END,
    $22, verified_kid, CASE WHEN NOT is_erased THEN ($21::text[])[position] END
FROM judged
WHERE (
    SELECT CASE
        WHEN cardinality(ARRAY(SELECT true FROM new_account)) + cardinality(ARRAY(SELECT true FROM moved_account))
                <> cardinality(ARRAY(SELECT true FROM judged WHERE is_new_account OR moves_account))
            OR cardinality(ARRAY(SELECT true FROM new_consent)) + cardinality(ARRAY(SELECT true FROM moved_consent))
                <> cardinality(ARRAY(SELECT true FROM judged WHERE is_new_consent OR moves_consent))
        THEN siwa.refuse_stale_snapshot()
        ELSE pg_logical_emit_message(true, 'siwad', ''::text) IS NOT NULL
    END
)
ON CONFLICT DO NOTHING
RETURNING jti, outcome, sessions_ended
