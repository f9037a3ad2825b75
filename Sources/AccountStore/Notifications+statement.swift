import Postgres

extension Notifications {
    /// Records a whole batch: one statement, one round trip, one transaction.
    ///
    /// It is given the batch three times, as ``BatchFacts`` has put it together: the persons with what the batch says of
    /// each, the consents likewise, and the notifications, each with the number of its consent.
    ///
    /// What makes it correct:
    /// - Facts are merged into registers by `least` and `greatest`, first within the batch, then with the rows; a row is
    ///   written only if a register moves, and rows are locked in the order of their persons and apps.
    /// - What changed is found by comparing the snapshot's row with what becomes of it. A row is updated only while it is
    ///   the very version that the snapshot showed; when another writer came in between, the statement fails with 40001
    ///   and is executed again.
    /// - A notification that is there already is passed over by its unique `jti`. Its facts are merged all the same, since
    ///   they are the same facts.
    /// - Of a person whose data were erased no token is kept. Their address register stands at infinity, so that no
    ///   observation moves it.
    ///
    /// What makes it fast, with the settings of ``writerSettings``: look-ups in tables are lateral sub-selects, which can
    /// only be nested loops over an index; a row that was looked up is updated at its place, without a second search;
    /// joins among the batch are hash joins over small numbers. The plan is the same for an empty table and for a large
    /// one. The tokens, most of the bytes, go straight from their array into the table.
    static let record = Statement(
        """
        WITH person AS MATERIALIZED (
            SELECT
                f.person, f.sub COLLATE "C" AS sub, f.team_id COLLATE "C" AS team_id,
                f.deleted_at, f.disabled_at, f.enabled_at, f.observed_at, f.email, f.email_is_private,
                a.place, a.account_id, a.revision,
                a.deleted_at AS was_deleted_at, a.forwarding_disabled_at AS was_disabled_at,
                a.forwarding_enabled_at AS was_enabled_at, a.email AS was_email,
                a.erased_at IS NOT NULL AS is_erased,
                a.account_id IS NULL
                    OR (f.deleted_at IS NOT NULL AND (a.deleted_at IS NULL OR f.deleted_at < a.deleted_at))
                    OR (f.disabled_at IS NOT NULL AND (a.forwarding_disabled_at IS NULL OR f.disabled_at > a.forwarding_disabled_at))
                    OR (f.enabled_at IS NOT NULL AND (a.forwarding_enabled_at IS NULL OR f.enabled_at > a.forwarding_enabled_at))
                    OR w.readdresses AS moves,
                w.readdresses
            FROM unnest(
                $1::text[], $2::text[], $3::timestamptz[], $4::timestamptz[], $5::timestamptz[], $6::timestamptz[], $7::text[],
                $8::boolean[]
            ) WITH ORDINALITY AS f (
                sub, team_id, deleted_at, disabled_at, enabled_at, observed_at, email, email_is_private, person
            )
            LEFT JOIN LATERAL (
                SELECT
                    k.ctid AS place, k.account_id, k.revision, k.deleted_at, k.forwarding_disabled_at, k.forwarding_enabled_at,
                    k.email_observed_at, k.email, k.email_is_private, k.erased_at
                FROM siwa.accounts AS k
                WHERE k.sub = f.sub COLLATE "C" AND k.team_id = f.team_id COLLATE "C"
                OFFSET 0
            ) AS a ON true
            CROSS JOIN LATERAL (
                SELECT siwa.observation_wins(
                    f.observed_at, f.email, f.email_is_private, a.email_observed_at, a.email, a.email_is_private
                ) AS readdresses
                OFFSET 0
            ) AS w
        ),
        new_account AS (
            INSERT INTO siwa.accounts AS a (
                sub, team_id, deleted_at, forwarding_disabled_at, forwarding_enabled_at, email_observed_at, email, email_is_private
            )
            SELECT sub, team_id, deleted_at, disabled_at, enabled_at, observed_at, email, email_is_private
            FROM person
            WHERE account_id IS NULL
            ORDER BY person
            ON CONFLICT ON CONSTRAINT accounts_person_is_unique DO NOTHING
            RETURNING a.account_id, a.sub, a.team_id
        ),
        moved_account AS (
            UPDATE siwa.accounts AS a SET
                revision = a.revision + 1,
                deleted_at = least(a.deleted_at, p.deleted_at),
                forwarding_disabled_at = greatest(a.forwarding_disabled_at, p.disabled_at),
                forwarding_enabled_at = greatest(a.forwarding_enabled_at, p.enabled_at),
                email_observed_at = CASE WHEN p.readdresses THEN p.observed_at ELSE a.email_observed_at END,
                email = CASE WHEN p.readdresses THEN p.email ELSE a.email END,
                email_is_private = CASE WHEN p.readdresses THEN p.email_is_private ELSE a.email_is_private END
            FROM (SELECT * FROM person WHERE moves AND account_id IS NOT NULL ORDER BY person OFFSET 0) AS p
            WHERE a.ctid = p.place AND a.revision = p.revision
            RETURNING p.person
        ),
        account AS MATERIALIZED (
            SELECT
                p.person, p.sub, p.team_id,
                coalesce(p.account_id, i.account_id) AS account_id,
                p.is_erased,
                p.was_deleted_at IS NOT NULL AS was_deleted,
                p.was_deleted_at IS NOT NULL OR p.deleted_at IS NOT NULL AS is_deleted,
                siwa.forwarding_state(p.was_disabled_at, p.was_enabled_at) AS was_forwarding,
                siwa.forwarding_state(t.disabled_at, t.enabled_at) AS is_forwarding,
                t.disabled_at,
                t.enabled_at,
                -- When the address that the row holds now was seen, if it is another one than before.
                CASE WHEN p.readdresses AND p.email IS DISTINCT FROM p.was_email THEN p.observed_at END AS readdressed_at,
                CASE
                    WHEN p.deleted_at IS NOT NULL AND p.was_deleted_at IS NULL THEN (
                        SELECT count(*)::integer
                        FROM siwa.account_sessions AS s
                        CROSS JOIN LATERAL (
                            SELECT k.revoked_at
                            FROM siwa.consents AS k
                            WHERE k.account_id = s.account_id AND k.app_id = s.app_id
                            OFFSET 0
                        ) AS c
                        WHERE s.account_id = p.account_id
                            AND (c.revoked_at IS NULL OR s.created_at > c.revoked_at)
                            AND s.closed_at IS NULL
                            AND (s.expires_at IS NULL OR s.expires_at > now())
                    )
                    ELSE 0
                END AS sessions_ended
            FROM person AS p
            LEFT JOIN moved_account AS m USING (person)
            LEFT JOIN new_account AS i USING (sub, team_id)
            CROSS JOIN LATERAL (
                SELECT
                    greatest(p.was_disabled_at, p.disabled_at) AS disabled_at,
                    greatest(p.was_enabled_at, p.enabled_at) AS enabled_at
            ) AS t
            WHERE CASE
                WHEN p.moves AND m.person IS NULL AND i.account_id IS NULL THEN siwa.refuse_stale_snapshot() ELSE true
            END
        ),
        consent_before AS MATERIALIZED (
            SELECT
                f.consent, f.app_id COLLATE "C" AS app_id, f.revoked_at,
                a.person, a.account_id, a.is_deleted,
                c.place, c.revision, c.authorized_at, c.revoked_at AS was_revoked_at,
                f.revoked_at > c.revoked_at OR (f.revoked_at IS NOT NULL AND c.revoked_at IS NULL) AS moves
            FROM unnest($9::bigint[], $10::text[], $11::timestamptz[]) WITH ORDINALITY AS f (
                person, app_id, revoked_at, consent
            )
            JOIN account AS a USING (person)
            LEFT JOIN LATERAL (
                SELECT k.ctid AS place, k.revision, k.authorized_at, k.revoked_at
                FROM siwa.consents AS k
                WHERE k.account_id = a.account_id AND k.app_id = f.app_id COLLATE "C"
                OFFSET 0
            ) AS c ON true
        ),
        new_consent AS (
            INSERT INTO siwa.consents AS c (account_id, app_id, revoked_at)
            SELECT account_id, app_id, revoked_at
            FROM consent_before
            WHERE place IS NULL
            ORDER BY consent
            ON CONFLICT ON CONSTRAINT consents_pkey DO NOTHING
            RETURNING c.account_id, c.app_id
        ),
        moved_consent AS (
            UPDATE siwa.consents AS c SET
                revision = c.revision + 1,
                revoked_at = b.revoked_at
            FROM (SELECT * FROM consent_before WHERE place IS NOT NULL AND moves ORDER BY consent OFFSET 0) AS b
            WHERE c.ctid = b.place AND c.revision = b.revision
            RETURNING b.consent
        ),
        consent AS MATERIALIZED (
            SELECT
                b.consent, b.person, b.app_id,
                greatest(b.was_revoked_at, b.revoked_at) AS revoked_at,
                siwa.consent_state(b.authorized_at, b.was_revoked_at) AS was_state,
                siwa.consent_state(b.authorized_at, greatest(b.was_revoked_at, b.revoked_at)) AS is_state,
                CASE
                    WHEN b.moves AND NOT b.is_deleted THEN (
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
                END AS sessions_ended
            FROM consent_before AS b
            LEFT JOIN moved_consent AS m USING (consent)
            LEFT JOIN new_consent AS i USING (account_id, app_id)
            WHERE CASE
                WHEN CASE WHEN b.place IS NULL THEN i.account_id IS NULL ELSE b.moves AND m.consent IS NULL END
                THEN siwa.refuse_stale_snapshot()
                ELSE true
            END
        ),
        judged AS MATERIALIZED (
            SELECT
                w.*,
                CASE
                    WHEN w.is_change OR w.readdresses THEN 'applied'
                    WHEN CASE w.facet
                        WHEN 'email' THEN w.is_deleted OR NOT w.agrees OR w.event_time < w.latest_at
                        WHEN 'consent' THEN w.is_deleted OR w.event_time < w.latest_at OR w.to_state = 'authorized'
                    END THEN 'superseded'
                    ELSE 'unchanged'
                END AS outcome
            FROM (
                SELECT
                    v.*,
                    v.leads AND (v.facet <> 'email' OR v.agrees) AND (v.from_state <> v.to_state OR v.could_end > 0) AS is_change,
                    v.facet = 'email' AND v.leads AND v.has_email AND v.event_time = v.readdressed_at AS readdresses
                FROM (
                    SELECT
                        n.position, n.jti, n.issued_at, n.received_at, n.event_type, n.event_time, n.leads, n.has_email,
                        n.verified_kid,
                        a.sub, a.team_id, c.app_id, a.account_id, a.is_erased, a.is_deleted, a.readdressed_at,
                        t.facet,
                        (n.event_type = 'email-enabled') = (a.is_forwarding = 'deliverable') AS agrees,
                        CASE n.event_type
                            WHEN 'email-enabled' THEN a.enabled_at
                            WHEN 'email-disabled' THEN a.disabled_at
                            ELSE c.revoked_at
                        END AS latest_at,
                        CASE t.facet
                            WHEN 'email' THEN a.was_forwarding
                            WHEN 'consent' THEN CASE WHEN a.is_deleted THEN 'revoked' ELSE c.was_state END
                            WHEN 'account' THEN CASE WHEN a.was_deleted THEN 'deleted' ELSE 'active' END
                        END AS from_state,
                        CASE t.facet
                            WHEN 'email' THEN a.is_forwarding
                            WHEN 'consent' THEN CASE WHEN a.is_deleted THEN 'revoked' ELSE c.is_state END
                            WHEN 'account' THEN 'deleted'
                        END AS to_state,
                        CASE t.facet WHEN 'consent' THEN c.sessions_ended WHEN 'account' THEN a.sessions_ended ELSE 0 END AS could_end
                    FROM unnest(
                        $12::text[], $13::timestamptz[], $14::timestamptz[], $15::text[], $16::timestamptz[], $17::bigint[],
                        $18::boolean[], $19::boolean[], $20::text[]
                    ) WITH ORDINALITY AS n (
                        jti, issued_at, received_at, event_type, event_time, consent, leads, has_email, verified_kid, position
                    )
                    JOIN consent AS c USING (consent)
                    JOIN account AS a USING (person)
                    CROSS JOIN LATERAL (
                        SELECT
                            CASE n.event_type
                                WHEN 'email-disabled' THEN 'email'
                                WHEN 'email-enabled' THEN 'email'
                                WHEN 'consent-revoked' THEN 'consent'
                                ELSE 'account'
                            END AS facet
                    ) AS t
                    OFFSET 0
                ) AS v
                OFFSET 0
            ) AS w
        ),
        changed AS (
            INSERT INTO siwa.account_changes (account_id, app_id, facet, from_state, to_state, event_time, jti, sessions_ended)
            SELECT account_id, app_id, facet, from_state, to_state, event_time, jti, could_end
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
                jti, issued_at, received_at, event_time, CASE WHEN is_change THEN could_end ELSE 0 END, team_id, app_id, sub,
                event_type, outcome, $22, verified_kid,
                CASE WHEN NOT is_erased THEN ($21::text[])[position] END
            FROM (SELECT * FROM judged ORDER BY position OFFSET 0) AS j
            ON CONFLICT DO NOTHING
            RETURNING jti, outcome, sessions_ended
        )
        SELECT jti, outcome, sessions_ended FROM stored
        """
    )
}
