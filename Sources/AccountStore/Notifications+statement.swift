import Postgres

extension Notifications {
    /// Records a whole batch: one statement, one round trip, one transaction.
    ///
    /// What makes it correct:
    /// - Facts are merged into registers by `least` and `greatest`, first within the batch (`person`, `consent_before`),
    ///   then with the rows; a row is written only if a register moves, and rows are locked in key order.
    /// - What changed is found by comparing the snapshot's row with the one that was written. `revision` tells whether
    ///   another writer came in between; then the statement fails with 40001 and is executed again.
    /// - A notification that is there already is passed over by its unique `jti`. Its facts are merged all the same, since
    ///   they are the same facts.
    /// - Of a person whose data were erased no token is kept. Their address register stands at infinity, so that no
    ///   observation moves it.
    ///
    /// What makes it fast, with the settings of ``writerSettings``: look-ups in tables are lateral sub-selects, which can
    /// only be nested loops over an index; joins among the batch are hash joins. The plan is the same for an empty table
    /// and for a large one.
    static let record = Statement(
        """
        WITH input AS MATERIALIZED (
            SELECT
                n.jti COLLATE "C" AS jti, n.issued_at, n.received_at, n.team_id COLLATE "C" AS team_id,
                n.app_id COLLATE "C" AS app_id, n.sub COLLATE "C" AS sub, n.event_type, n.event_time,
                n.email, n.email_is_private, n.verified_kid, n.jws, n.position, r.register,
                -- The one notification of the batch whose time the register would take.
                row_number() OVER (
                    PARTITION BY n.sub COLLATE "C", n.team_id COLLATE "C", r.register, r.scope COLLATE "C"
                    ORDER BY CASE WHEN r.register = 'deleted' THEN n.event_time END, n.event_time DESC, n.position
                ) = 1 AS leads
            FROM unnest(
                $1::text[], $2::timestamptz[], $3::timestamptz[], $4::text[], $5::text[], $6::text[], $7::text[],
                $8::timestamptz[], $9::text[], $10::boolean[], $11::text[], $12::text[]
            ) WITH ORDINALITY AS n (
                jti, issued_at, received_at, team_id, app_id, sub, event_type, event_time, email, email_is_private, verified_kid,
                jws, position
            )
            CROSS JOIN LATERAL (
                SELECT
                    CASE
                        WHEN n.event_type IN ('account-delete', 'account-deleted') THEN 'deleted' ELSE n.event_type
                    END AS register,
                    CASE WHEN n.event_type = 'consent-revoked' THEN n.app_id ELSE '' END AS scope
            ) AS r
        ),
        person AS MATERIALIZED (
            SELECT
                f.sub, f.team_id, f.deleted_at, f.disabled_at, f.enabled_at,
                o.event_time AS observed_at, o.email, o.email_is_private,
                a.account_id, a.revision,
                a.deleted_at AS was_deleted_at, a.forwarding_disabled_at AS was_disabled_at,
                a.forwarding_enabled_at AS was_enabled_at, a.email AS was_email,
                a.erased_at IS NOT NULL AS is_erased,
                a.account_id IS NULL
                    OR (f.deleted_at IS NOT NULL AND (a.deleted_at IS NULL OR f.deleted_at < a.deleted_at))
                    OR (f.disabled_at IS NOT NULL AND (a.forwarding_disabled_at IS NULL OR f.disabled_at > a.forwarding_disabled_at))
                    OR (f.enabled_at IS NOT NULL AND (a.forwarding_enabled_at IS NULL OR f.enabled_at > a.forwarding_enabled_at))
                    OR siwa.observation_wins(
                        o.event_time, o.email, o.email_is_private, a.email_observed_at, a.email, a.email_is_private
                    ) AS moves
            FROM (
                SELECT
                    sub, team_id,
                    min(event_time) FILTER (WHERE register = 'deleted') AS deleted_at,
                    max(event_time) FILTER (WHERE register = 'email-disabled') AS disabled_at,
                    max(event_time) FILTER (WHERE register = 'email-enabled') AS enabled_at
                FROM input
                GROUP BY sub, team_id
            ) AS f
            LEFT JOIN (
                SELECT DISTINCT ON (sub, team_id) sub, team_id, event_time, email, email_is_private
                FROM input
                WHERE email IS NOT NULL
                ORDER BY sub, team_id, event_time DESC, email COLLATE "C" DESC, email_is_private DESC NULLS LAST
            ) AS o USING (sub, team_id)
            LEFT JOIN LATERAL (
                SELECT * FROM siwa.accounts AS k WHERE k.sub = f.sub AND k.team_id = f.team_id OFFSET 0
            ) AS a ON true
        ),
        moved_account AS (
            INSERT INTO siwa.accounts AS a (
                sub, team_id, deleted_at, forwarding_disabled_at, forwarding_enabled_at, email_observed_at, email, email_is_private
            )
            SELECT sub, team_id, deleted_at, disabled_at, enabled_at, observed_at, email, email_is_private
            FROM person
            WHERE moves
            ORDER BY sub, team_id
            ON CONFLICT ON CONSTRAINT accounts_person_is_unique DO UPDATE SET
                revision = a.revision + 1,
                deleted_at = least(a.deleted_at, excluded.deleted_at),
                forwarding_disabled_at = greatest(a.forwarding_disabled_at, excluded.forwarding_disabled_at),
                forwarding_enabled_at = greatest(a.forwarding_enabled_at, excluded.forwarding_enabled_at),
                (email_observed_at, email, email_is_private) = (
                    SELECT
                        CASE WHEN w THEN excluded.email_observed_at ELSE a.email_observed_at END,
                        CASE WHEN w THEN excluded.email ELSE a.email END,
                        CASE WHEN w THEN excluded.email_is_private ELSE a.email_is_private END
                    FROM (
                        SELECT siwa.observation_wins(
                            excluded.email_observed_at, excluded.email, excluded.email_is_private,
                            a.email_observed_at, a.email, a.email_is_private
                        ) AS w
                    ) AS s
                )
            RETURNING
                a.account_id, a.sub, a.team_id, a.revision, a.deleted_at, a.forwarding_disabled_at, a.forwarding_enabled_at,
                a.email_observed_at, a.email
        ),
        account AS MATERIALIZED (
            SELECT
                p.sub, p.team_id,
                coalesce(m.account_id, p.account_id) AS account_id,
                p.is_erased,
                m.revision <> coalesce(p.revision, 0) + 1 AS is_stale,
                p.was_deleted_at IS NOT NULL AS was_deleted,
                coalesce(m.deleted_at, p.was_deleted_at) IS NOT NULL AS is_deleted,
                siwa.forwarding_state(p.was_disabled_at, p.was_enabled_at) AS was_forwarding,
                siwa.forwarding_state(
                    coalesce(m.forwarding_disabled_at, p.was_disabled_at), coalesce(m.forwarding_enabled_at, p.was_enabled_at)
                ) AS is_forwarding,
                coalesce(m.forwarding_disabled_at, p.was_disabled_at) AS disabled_at,
                coalesce(m.forwarding_enabled_at, p.was_enabled_at) AS enabled_at,
                -- When the address that the row holds now was seen, if it is another one than before.
                CASE WHEN m.email IS DISTINCT FROM p.was_email THEN m.email_observed_at END AS readdressed_at,
                CASE
                    WHEN m.deleted_at IS NOT NULL AND p.was_deleted_at IS NULL THEN (
                        SELECT count(*)::integer
                        FROM siwa.account_sessions AS s
                        CROSS JOIN LATERAL (
                            SELECT k.revoked_at
                            FROM siwa.consents AS k
                            WHERE k.account_id = s.account_id AND k.app_id = s.app_id
                            OFFSET 0
                        ) AS c
                        WHERE s.account_id = m.account_id
                            AND (c.revoked_at IS NULL OR s.created_at > c.revoked_at)
                            AND s.closed_at IS NULL
                            AND (s.expires_at IS NULL OR s.expires_at > now())
                    )
                    ELSE 0
                END AS sessions_ended
            FROM person AS p
            LEFT JOIN moved_account AS m USING (sub, team_id)
        ),
        consent_before AS MATERIALIZED (
            SELECT
                a.account_id, f.sub, f.team_id, f.app_id, f.revoked_at, a.is_deleted,
                c.revision, c.authorized_at, c.revoked_at AS was_revoked_at,
                c.account_id IS NULL OR f.revoked_at > c.revoked_at OR (f.revoked_at IS NOT NULL AND c.revoked_at IS NULL) AS moves
            FROM (
                SELECT sub, team_id, app_id, max(event_time) FILTER (WHERE register = 'consent-revoked') AS revoked_at
                FROM input
                GROUP BY sub, team_id, app_id
            ) AS f
            JOIN account AS a USING (sub, team_id)
            LEFT JOIN LATERAL (
                SELECT * FROM siwa.consents AS k WHERE k.account_id = a.account_id AND k.app_id = f.app_id OFFSET 0
            ) AS c ON true
        ),
        moved_consent AS (
            INSERT INTO siwa.consents AS c (account_id, app_id, revoked_at)
            SELECT account_id, app_id, revoked_at
            FROM consent_before
            WHERE moves
            ORDER BY account_id, app_id
            ON CONFLICT ON CONSTRAINT consents_pkey DO UPDATE SET
                revision = c.revision + 1,
                revoked_at = greatest(c.revoked_at, excluded.revoked_at)
            RETURNING c.account_id, c.app_id, c.revision, c.authorized_at, c.revoked_at
        ),
        consent AS MATERIALIZED (
            SELECT
                b.sub, b.team_id, b.app_id, b.account_id,
                m.revision <> coalesce(b.revision, 0) + 1 AS is_stale,
                t.revoked_at,
                siwa.consent_state(b.authorized_at, b.was_revoked_at) AS was_state,
                siwa.consent_state(coalesce(m.authorized_at, b.authorized_at), t.revoked_at) AS is_state,
                CASE
                    WHEN m.revoked_at IS NOT NULL AND NOT b.is_deleted THEN (
                        SELECT count(*)::integer
                        FROM siwa.account_sessions AS s
                        WHERE s.account_id = b.account_id
                            AND s.app_id = b.app_id
                            AND s.created_at <= t.revoked_at
                            AND (b.was_revoked_at IS NULL OR s.created_at > b.was_revoked_at)
                            AND s.closed_at IS NULL
                            AND (s.expires_at IS NULL OR s.expires_at > now())
                    )
                    ELSE 0
                END AS sessions_ended
            FROM consent_before AS b
            LEFT JOIN moved_consent AS m USING (account_id, app_id)
            CROSS JOIN LATERAL (SELECT coalesce(m.revoked_at, b.was_revoked_at) AS revoked_at) AS t
        ),
        judged AS MATERIALIZED (
            SELECT
                i.*, a.account_id, a.is_erased, v.facet, v.from_state, v.to_state,
                CASE
                    WHEN v.is_change OR v.readdresses THEN 'applied' WHEN v.is_overruled THEN 'superseded' ELSE 'unchanged'
                END AS outcome,
                CASE WHEN v.is_change THEN v.sessions_ended ELSE 0 END AS sessions_ended,
                v.is_change
            FROM input AS i
            JOIN account AS a USING (sub, team_id)
            JOIN consent AS c USING (sub, team_id, app_id)
            CROSS JOIN LATERAL (
                SELECT e.*, i.leads AND e.decides AND (e.from_state <> e.to_state OR e.sessions_ended > 0) AS is_change
                FROM (
                    SELECT
                        'account' AS facet,
                        CASE WHEN a.was_deleted THEN 'deleted' ELSE 'active' END AS from_state,
                        'deleted' AS to_state,
                        true AS decides,
                        false AS is_overruled,
                        a.sessions_ended,
                        false AS readdresses
                    WHERE i.register = 'deleted'
                    UNION ALL
                    SELECT
                        'consent',
                        CASE WHEN a.is_deleted THEN 'revoked' ELSE c.was_state END,
                        CASE WHEN a.is_deleted THEN 'revoked' ELSE c.is_state END,
                        true,
                        a.is_deleted OR i.event_time < c.revoked_at OR c.is_state = 'authorized',
                        c.sessions_ended,
                        false
                    WHERE i.register = 'consent-revoked'
                    UNION ALL
                    SELECT
                        'email',
                        a.was_forwarding,
                        a.is_forwarding,
                        t.agrees,
                        a.is_deleted OR NOT t.agrees OR i.event_time < t.latest_at,
                        0,
                        i.leads AND i.email IS NOT NULL AND i.event_time = a.readdressed_at
                    FROM (
                        SELECT
                            (i.register = 'email-enabled') = (a.is_forwarding = 'deliverable') AS agrees,
                            CASE i.register WHEN 'email-enabled' THEN a.enabled_at ELSE a.disabled_at END AS latest_at
                    ) AS t
                    WHERE i.register IN ('email-disabled', 'email-enabled')
                ) AS e
            ) AS v
        ),
        changed AS (
            INSERT INTO siwa.account_changes (account_id, app_id, facet, from_state, to_state, event_time, jti, sessions_ended)
            SELECT account_id, app_id, facet, from_state, to_state, event_time, jti, sessions_ended
            FROM judged
            WHERE is_change
            ORDER BY position
        ),
        stored AS (
            INSERT INTO siwa.notifications (
                jti, issued_at, received_at, event_time, sessions_ended, team_id, app_id, sub, event_type, outcome, source,
                verified_kid, jws
            )
            SELECT
                jti, issued_at, received_at, event_time, sessions_ended, team_id, app_id, sub, event_type, outcome, $13,
                verified_kid, CASE WHEN NOT is_erased THEN jws END
            FROM judged
            ORDER BY position
            ON CONFLICT DO NOTHING
            RETURNING jti, outcome, sessions_ended
        )
        SELECT jti, outcome, sessions_ended FROM stored
        UNION ALL
        SELECT NULL, NULL, NULL
        WHERE (
            SELECT count(*) FROM account WHERE is_stale OR account_id IS NULL
        ) + (SELECT count(*) FROM consent WHERE is_stale) > 0 AND siwa.refuse_stale_snapshot()
        """
    )
}
