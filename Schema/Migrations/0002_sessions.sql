-- Sessions of the applications.
--
-- A session rests on a sign-in, and whether it is live follows from registers at the moment of asking: no notification writes
-- to a session's row, so no session survives because it was opened or rotated while a revocation was on its way.

CREATE TABLE siwa.account_sessions (
    session_id   text COLLATE "C" NOT NULL,
    account_id   bigint NOT NULL,
    app_id       text COLLATE "C" NOT NULL,
    created_at   timestamptz NOT NULL,
    signed_in_at timestamptz NOT NULL,
    expires_at   timestamptz,
    closed_at    timestamptz,
    close_reason text,
    CONSTRAINT account_sessions_pkey PRIMARY KEY (session_id),
    CONSTRAINT account_sessions_consent_exists
        FOREIGN KEY (account_id, app_id) REFERENCES siwa.consents (account_id, app_id),
    CONSTRAINT account_sessions_session_id_is_not_empty CHECK (session_id <> ''),
    CONSTRAINT account_sessions_rest_on_an_earlier_sign_in CHECK (signed_in_at <= created_at),
    CONSTRAINT account_sessions_expire_after_creation CHECK (expires_at > created_at),
    CONSTRAINT account_sessions_closed_for_a_reason CHECK ((closed_at IS NULL) = (close_reason IS NULL)),
    CONSTRAINT account_sessions_close_reason_is_known CHECK (close_reason IN ('signed-out', 'rotated', 'operator'))
) WITH (fillfactor = 80);
CREATE INDEX account_sessions_consent ON siwa.account_sessions (account_id, app_id);
-- For listings, newest first. created_at never changes, so closing or extending a session stays a HOT update.
CREATE INDEX account_sessions_created_at ON siwa.account_sessions (created_at);
COMMENT ON TABLE siwa.account_sessions IS 'The sessions as applications opened and closed them. Read them through siwa.sessions.';
COMMENT ON COLUMN siwa.account_sessions.session_id IS
    'The application''s own name for the session. An identifier or a digest: never a bearer token itself.';
COMMENT ON COLUMN siwa.account_sessions.signed_in_at IS
    'The sign-in that the session rests on: the consent''s authorized_at when it was opened, or created_at if that was earlier. A
rotated session inherits it. A revocation at or after this time ends the session.';
COMMENT ON COLUMN siwa.account_sessions.closed_at IS 'Closed by the application or an operator; notifications do not set it.';

CREATE VIEW siwa.sessions AS
SELECT
    s.session_id,
    a.team_id,
    a.sub,
    s.app_id,
    s.created_at,
    s.signed_in_at,
    s.expires_at,
    e.ended_at,
    CASE e.ended_at
        WHEN e.deletion THEN 'account-deleted'
        WHEN e.revocation THEN 'consent-revoked'
        WHEN s.closed_at THEN s.close_reason
    END AS end_reason,
    s.account_id
FROM siwa.account_sessions AS s
JOIN siwa.accounts AS a USING (account_id)
JOIN siwa.consents AS c USING (account_id, app_id)
CROSS JOIN LATERAL (
    SELECT x.deletion, x.revocation, least(x.deletion, x.revocation, s.closed_at) AS ended_at
    FROM (
        SELECT
            -- Apple delivers late: a session may have been opened after the event that ends it.
            CASE WHEN a.deleted_at IS NOT NULL THEN greatest(s.created_at, a.deleted_at) END AS deletion,
            CASE WHEN c.revoked_at >= s.signed_in_at THEN greatest(s.created_at, c.revoked_at) END AS revocation
    ) AS x
) AS e;
COMMENT ON VIEW siwa.sessions IS
    'Every session with its end. ended_at: the earliest of its closing, the deletion of the account and the latest revocation at or
after its sign-in, by Apple''s event_time but never before its opening; null if there is none, also after it expired.';
COMMENT ON COLUMN siwa.sessions.end_reason IS 'consent-revoked, account-deleted, signed-out, rotated or operator.';

CREATE VIEW siwa.live_sessions AS
SELECT session_id, team_id, sub, app_id, created_at, signed_in_at, expires_at, account_id
FROM siwa.sessions
WHERE ended_at IS NULL AND (expires_at IS NULL OR expires_at > now());
COMMENT ON VIEW siwa.live_sessions IS 'The sessions that are live now: not ended and not expired.';
