-- The registers of a person and the notification that set each of them. Reads the person's notifications once, by their index.
-- An address that no notification reports was observed at a sign-in, unless retention has dropped the notification that set both
-- the address and a forwarding register.
WITH register AS MATERIALIZED (
    SELECT a.account_id, r.*
    FROM siwa.accounts AS a
    CROSS JOIN LATERAL (
        SELECT v.*
        FROM (
            VALUES
                ('deleted_at', NULL, a.deleted_at, false, 'account', NULL, '{account-delete,account-deleted}'),
                (
                    'forwarding_disabled_at', NULL, a.forwarding_disabled_at, false, 'email', 'undeliverable',
                    '{email-disabled}'
                ),
                (
                    'forwarding_enabled_at', NULL, a.forwarding_enabled_at, false, 'email', 'deliverable',
                    '{email-enabled}'
                ),
                (
                    'email_observed_at', NULL, nullif(a.email_observed_at, 'infinity'),
                    a.email_observed_at IS DISTINCT FROM a.forwarding_disabled_at
                        AND a.email_observed_at IS DISTINCT FROM a.forwarding_enabled_at,
                    'email', NULL, '{email-disabled,email-enabled}'
                )
        ) AS v
        UNION ALL
        SELECT v.*
        FROM siwa.consents AS c
        CROSS JOIN LATERAL (
            VALUES
                ('authorized_at', c.app_id, c.authorized_at, true, NULL, NULL, '{}'),
                ('revoked_at', c.app_id, c.revoked_at, false, 'consent', NULL, '{consent-revoked}')
        ) AS v
        WHERE c.account_id = a.account_id
    ) AS r (name, app_id, moment, is_sign_in, facet, to_state, event_types)
    WHERE a.sub = $1 AND a.team_id = $2 AND r.moment IS NOT NULL
),
notification AS MATERIALIZED (
    SELECT jti, app_id, event_type, event_time, source, received_at, recorded_at
    FROM siwa.notifications
    WHERE sub = $1 AND team_id = $2 AND event_time = ANY (ARRAY(SELECT moment FROM register))
)
SELECT r.name, r.app_id, r.moment, coalesce(t.jti, h.jti), t.source, t.received_at, r.is_sign_in
FROM register AS r
LEFT JOIN LATERAL (
    SELECT *
    FROM notification
    WHERE event_time = r.moment
        AND event_type = ANY (r.event_types::text[])
        AND (r.app_id IS NULL OR app_id = r.app_id)
    ORDER BY recorded_at, received_at, jti
    LIMIT 1
) AS t ON true
LEFT JOIN LATERAL (
    SELECT jti
    FROM siwa.account_changes
    WHERE t.jti IS NULL
        AND account_id = r.account_id
        AND facet = r.facet
        AND event_time = r.moment
        AND (r.app_id IS NULL OR app_id = r.app_id)
        AND (r.to_state IS NULL OR to_state = r.to_state)
        AND jti IS NOT NULL
    ORDER BY change_id
    LIMIT 1
) AS h ON true
ORDER BY r.app_id NULLS FIRST, r.moment, r.name
