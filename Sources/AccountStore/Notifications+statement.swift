import Postgres

extension Notifications {
    /// Records a whole batch: one statement, one round trip, one transaction.
    ///
    /// It is given the batch twice, as ``BatchFacts`` has put it together: the consents, each with what the batch says of it
    /// and of its person, and the notifications, each with the number of its consent. The first consent of each person
    /// stands for the person.
    ///
    /// What makes it correct:
    /// - Facts are merged into registers by `least` and `greatest`, first within the batch, then with the rows; a row is
    ///   written only if a register moves.
    /// - What changed is found by comparing the snapshot's row with what becomes of it. A row is updated only while it is
    ///   the very version that the snapshot showed; when another writer came in between, the statement fails, with 40001
    ///   or because what is new here is there already, and is executed again.
    /// - A notification that is there already is passed over by its unique `jti`. Its facts are merged all the same, since
    ///   they are the same facts.
    /// - Where nothing may be written, an empty message goes to the write-ahead log. A commit without anything there
    ///   waits neither for the disk nor for standbys, but the one that brought a notification that is there already may
    ///   be one that was never confirmed.
    /// - Of a person whose data were erased no token is kept. Their address register stands at infinity, so that no
    ///   observation moves it.
    ///
    /// What makes it fast, with the settings of ``writerSettings``: look-ups in tables are lateral sub-selects, which can
    /// only be nested loops over an index; a row that was looked up is updated at its place, without a second search;
    /// joins among the batch are hash joins over small numbers. The plan has the same shape for an empty table and for a
    /// large one. The arrays are unnested in select lists, side by side: in FROM, each of them would be written to a store of
    /// its own and read from it again. The tokens, most of the bytes, go straight from their array into the table. A small
    /// batch costs what starting the plan costs: every node counts, and every column that passes through one.
    ///
    /// Nothing is sorted, since nothing depends on an order. As nothing reorders rows, either, they are locked and written
    /// in the order of the arrays: writers meet in the order of the persons, and a change's number follows the batch.
    static let record = Statement(
        """
        WITH before AS MATERIALIZED (
            SELECT
                f.consent, f.sub COLLATE "C" AS sub, f.team_id COLLATE "C" AS team_id, f.app_id COLLATE "C" AS app_id,
                f.is_first, f.deleted_at, f.disabled_at, f.enabled_at, f.observed_at, f.email, f.email_is_private, f.revoked_at,
                a.place, a.account_id, a.revision,
                a.deleted_at AS was_deleted_at, a.forwarding_disabled_at AS was_disabled_at,
                a.forwarding_enabled_at AS was_enabled_at, a.email AS was_email,
                a.erased_at IS NOT NULL AS is_erased,
                siwa.observation_wins(
                    f.observed_at, f.email, f.email_is_private, a.email_observed_at, a.email, a.email_is_private
                ) AS readdresses,
                f.deleted_at < a.deleted_at OR (f.deleted_at IS NOT NULL AND a.deleted_at IS NULL)
                    OR f.disabled_at > a.forwarding_disabled_at OR (f.disabled_at IS NOT NULL AND a.forwarding_disabled_at IS NULL)
                    OR f.enabled_at > a.forwarding_enabled_at OR (f.enabled_at IS NOT NULL AND a.forwarding_enabled_at IS NULL)
                    AS moves,
                c.place AS consent_place, c.revision AS consent_revision,
                c.authorized_at, c.revoked_at AS was_revoked_at,
                f.revoked_at > c.revoked_at OR (f.revoked_at IS NOT NULL AND c.revoked_at IS NULL) AS revokes
            FROM (
                SELECT
                    generate_subscripts($1::text[], 1) AS consent,
                    unnest($1::text[]) AS sub, unnest($2::text[]) AS team_id, unnest($3::text[]) AS app_id,
                    unnest($4::boolean[]) AS is_first,
                    unnest($5::timestamptz[]) AS deleted_at, unnest($6::timestamptz[]) AS disabled_at,
                    unnest($7::timestamptz[]) AS enabled_at, unnest($8::timestamptz[]) AS observed_at,
                    unnest($9::text[]) AS email, unnest($10::boolean[]) AS email_is_private,
                    unnest($11::timestamptz[]) AS revoked_at
            ) AS f
            LEFT JOIN LATERAL (
                SELECT
                    k.ctid AS place, k.account_id, k.revision, k.deleted_at, k.forwarding_disabled_at, k.forwarding_enabled_at,
                    k.email_observed_at, k.email, k.email_is_private, k.erased_at
                FROM siwa.accounts AS k
                WHERE k.sub = f.sub COLLATE "C" AND k.team_id = f.team_id COLLATE "C"
                OFFSET 0
            ) AS a ON true
            LEFT JOIN LATERAL (
                SELECT k.ctid AS place, k.revision, k.authorized_at, k.revoked_at
                FROM siwa.consents AS k
                WHERE k.account_id = a.account_id AND k.app_id = f.app_id COLLATE "C"
                OFFSET 0
            ) AS c ON true
        ),
        new_account AS (
            INSERT INTO siwa.accounts AS a (
                sub, team_id, deleted_at, forwarding_disabled_at, forwarding_enabled_at, email_observed_at, email, email_is_private
            )
            SELECT sub, team_id, deleted_at, disabled_at, enabled_at, observed_at, email, email_is_private
            FROM before
            WHERE account_id IS NULL AND is_first
            RETURNING a.account_id, a.sub, a.team_id
        ),
        moved_account AS (
            UPDATE siwa.accounts AS a SET
                revision = a.revision + 1,
                deleted_at = least(a.deleted_at, b.deleted_at),
                forwarding_disabled_at = greatest(a.forwarding_disabled_at, b.disabled_at),
                forwarding_enabled_at = greatest(a.forwarding_enabled_at, b.enabled_at),
                email_observed_at = CASE WHEN b.readdresses THEN b.observed_at ELSE a.email_observed_at END,
                email = CASE WHEN b.readdresses THEN b.email ELSE a.email END,
                email_is_private = CASE WHEN b.readdresses THEN b.email_is_private ELSE a.email_is_private END
            FROM before AS b
            WHERE b.is_first
                AND (b.moves OR b.readdresses)
                AND a.ctid = b.place AND a.revision = b.revision
            RETURNING b.consent
        ),
        moved_consent AS (
            UPDATE siwa.consents AS c SET
                revision = c.revision + 1,
                revoked_at = b.revoked_at
            FROM before AS b
            WHERE b.revokes AND c.ctid = b.consent_place AND c.revision = b.consent_revision
            RETURNING b.consent
        ),
        state AS MATERIALIZED (
            SELECT
                b.consent, b.sub, b.team_id, b.app_id, b.is_erased,
                b.consent_place IS NULL AS is_new,
                coalesce(b.account_id, i.account_id) AS account_id,
                b.was_deleted_at IS NOT NULL AS was_deleted,
                b.was_deleted_at IS NOT NULL OR b.deleted_at IS NOT NULL AS is_deleted,
                siwa.forwarding_state(b.was_disabled_at, b.was_enabled_at) AS was_forwarding,
                siwa.forwarding_state(t.disabled_at, t.enabled_at) AS is_forwarding,
                t.disabled_at, t.enabled_at, t.revoked_at,
                -- When the address that the row holds now was seen, if it is another one than before.
                CASE WHEN b.readdresses AND b.email IS DISTINCT FROM b.was_email THEN b.observed_at END AS readdressed_at,
                siwa.consent_state(b.authorized_at, b.was_revoked_at) AS was_consent,
                siwa.consent_state(b.authorized_at, t.revoked_at) AS is_consent,
                CASE
                    WHEN b.deleted_at IS NOT NULL AND b.was_deleted_at IS NULL THEN (
                        SELECT count(*)::integer
                        FROM siwa.consents AS k
                        CROSS JOIN LATERAL (
                            SELECT s.created_at
                            FROM siwa.account_sessions AS s
                            WHERE s.account_id = k.account_id
                                AND s.app_id = k.app_id
                                AND s.closed_at IS NULL
                                AND (s.expires_at IS NULL OR s.expires_at > now())
                            OFFSET 0
                        ) AS s
                        WHERE k.account_id = b.account_id AND (k.revoked_at IS NULL OR s.created_at > k.revoked_at)
                    )
                    ELSE 0
                END AS ended_by_deletion,
                CASE
                    WHEN b.revokes AND b.deleted_at IS NULL AND b.was_deleted_at IS NULL THEN (
                        SELECT count(*)::integer
                        FROM siwa.account_sessions AS s
                        WHERE s.account_id = b.account_id
                            AND s.app_id = b.app_id
                            AND s.created_at <= b.revoked_at
                            AND (b.was_revoked_at IS NULL OR s.created_at > b.was_revoked_at)
                            AND s.closed_at IS NULL
                            AND (s.expires_at IS NULL OR s.expires_at > now())
                    )
                    ELSE 0
                END AS ended_by_revocation
            FROM before AS b
            LEFT JOIN new_account AS i USING (sub, team_id)
            LEFT JOIN moved_account AS m USING (consent)
            LEFT JOIN moved_consent AS r USING (consent)
            CROSS JOIN LATERAL (
                SELECT
                    greatest(b.was_disabled_at, b.disabled_at) AS disabled_at,
                    greatest(b.was_enabled_at, b.enabled_at) AS enabled_at,
                    greatest(b.was_revoked_at, b.revoked_at) AS revoked_at
            ) AS t
            WHERE CASE
                WHEN (b.is_first AND (b.moves OR b.readdresses) AND b.place IS NOT NULL AND m.consent IS NULL)
                    OR (b.revokes AND b.consent_place IS NOT NULL AND r.consent IS NULL)
                THEN siwa.refuse_stale_snapshot()
                ELSE b.moves OR b.readdresses OR b.revokes OR b.consent_place IS NULL
                    OR (SELECT pg_logical_emit_message(true, 'siwad', ''::text)) IS NOT NULL
            END
        ),
        new_consent AS (
            INSERT INTO siwa.consents (account_id, app_id, revoked_at)
            SELECT account_id, app_id, revoked_at
            FROM state
            WHERE is_new
        ),
        judged AS MATERIALIZED (
            SELECT
                n.position, n.jti, n.issued_at, n.received_at, n.event_type, n.event_time, n.verified_kid,
                s.sub, s.team_id, s.app_id, s.account_id, s.is_erased,
                e.facet, e.from_state, e.to_state, e.sessions_ended, e.is_change,
                CASE
                    WHEN e.is_change OR (e.facet = 'email' AND n.leads AND n.has_email AND n.event_time = s.readdressed_at)
                        THEN 'applied'
                    WHEN e.is_superseded THEN 'superseded'
                    ELSE 'unchanged'
                END AS outcome
            FROM (
                SELECT
                    generate_subscripts($12::text[], 1) AS position,
                    unnest($12::text[]) AS jti, unnest($13::timestamptz[]) AS issued_at, unnest($14::timestamptz[]) AS received_at,
                    unnest($15::text[]) AS event_type, unnest($16::timestamptz[]) AS event_time, unnest($17::integer[]) AS consent,
                    unnest($18::boolean[]) AS leads, unnest($19::boolean[]) AS has_email, unnest($20::text[]) AS verified_kid
            ) AS n
            JOIN state AS s USING (consent)
            CROSS JOIN LATERAL (
                SELECT
                    k.facet, k.from_state, k.to_state, k.sessions_ended, k.is_superseded,
                    n.leads AND k.agrees AND (k.from_state <> k.to_state OR k.sessions_ended > 0) AS is_change
                FROM (
                    SELECT
                        'email' AS facet, s.was_forwarding AS from_state, s.is_forwarding AS to_state, 0 AS sessions_ended,
                        s.is_forwarding = 'deliverable' AS agrees,
                        s.is_deleted OR s.is_forwarding <> 'deliverable' OR n.event_time < s.enabled_at AS is_superseded
                    WHERE n.event_type = 'email-enabled'
                    UNION ALL
                    SELECT
                        'email', s.was_forwarding, s.is_forwarding, 0,
                        s.is_forwarding = 'undeliverable',
                        s.is_deleted OR s.is_forwarding <> 'undeliverable' OR n.event_time < s.disabled_at
                    WHERE n.event_type = 'email-disabled'
                    UNION ALL
                    SELECT
                        'consent',
                        CASE WHEN s.is_deleted THEN 'revoked' ELSE s.was_consent END,
                        CASE WHEN s.is_deleted THEN 'revoked' ELSE s.is_consent END,
                        s.ended_by_revocation,
                        true,
                        s.is_deleted OR s.is_consent = 'authorized' OR n.event_time < s.revoked_at
                    WHERE n.event_type = 'consent-revoked'
                    UNION ALL
                    -- Whatever else there may be, lest it get lost here.
                    SELECT
                        'account', CASE WHEN s.was_deleted THEN 'deleted' ELSE 'active' END, 'deleted', s.ended_by_deletion,
                        true,
                        false
                    WHERE n.event_type NOT IN ('email-enabled', 'email-disabled', 'consent-revoked')
                ) AS k
            ) AS e
        ),
        changed AS (
            INSERT INTO siwa.account_changes (account_id, app_id, facet, from_state, to_state, event_time, jti, sessions_ended)
            SELECT account_id, app_id, facet, from_state, to_state, event_time, jti, sessions_ended
            FROM judged
            WHERE is_change
        )
        INSERT INTO siwa.notifications (
            jti, issued_at, received_at, event_time, sessions_ended, team_id, app_id, sub, event_type, outcome, source,
            verified_kid, jws
        )
        SELECT
            jti, issued_at, received_at, event_time, CASE WHEN is_change THEN sessions_ended ELSE 0 END, team_id, app_id, sub,
            event_type, outcome, $22, verified_kid,
            CASE WHEN NOT is_erased THEN ($21::text[])[position] END
        FROM judged
        ON CONFLICT DO NOTHING
        RETURNING jti, outcome, sessions_ended
        """
    )
}
