-- Sessions of the applications.
--
-- A session rests on a sign-in. Queries derive whether it is live from the registers of its account and consent. Notifications do
-- not write to session rows, so no session survives because it was opened or rotated before a revocation arrived.

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
-- Serves listings, newest first. created_at never changes, so closing or extending a session stays a HOT update.
CREATE INDEX account_sessions_created_at ON siwa.account_sessions (created_at);
COMMENT ON TABLE siwa.account_sessions IS
    'Sessions as applications opened and closed them. Read siwa.sessions instead, which adds how each session ended.';
COMMENT ON COLUMN siwa.account_sessions.session_id IS
    'The application''s own name for the session: an identifier or a digest, never a bearer token.';
COMMENT ON COLUMN siwa.account_sessions.signed_in_at IS
    'The sign-in that the session rests on: authorized_at of the consent when the session was opened, or created_at if that was
earlier. A rotated session inherits it. A revocation at or after this time ends the session.';
COMMENT ON COLUMN siwa.account_sessions.closed_at IS
    'When the application or an operator closed the session. Notifications do not set it.';

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
            -- Apple may deliver late: the session may have been opened after the event that ends it.
            CASE WHEN a.deleted_at IS NOT NULL THEN greatest(s.created_at, a.deleted_at) END AS deletion,
            CASE WHEN c.revoked_at >= s.signed_in_at THEN greatest(s.created_at, c.revoked_at) END AS revocation
    ) AS x
) AS e;
COMMENT ON VIEW siwa.sessions IS
    'Every session with its end. ended_at is the earliest of these times: when it was closed, when the account was deleted, and
the latest revocation at or after its sign-in. Apple''s event_time counts, but no session ends before it was opened. Null if
none of them happened, even if the session expired.';
COMMENT ON COLUMN siwa.sessions.end_reason IS 'consent-revoked, account-deleted, signed-out, rotated or operator.';

CREATE VIEW siwa.live_sessions AS
SELECT session_id, team_id, sub, app_id, created_at, signed_in_at, expires_at, account_id
FROM siwa.sessions
WHERE ended_at IS NULL AND (expires_at IS NULL OR expires_at > now());
COMMENT ON VIEW siwa.live_sessions IS 'Sessions that are live now: neither ended nor expired.';
