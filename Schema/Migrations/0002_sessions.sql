-- Sessions of the applications, and the functions that applications call.
--
-- Promise: whether a session is live follows from registers at the moment of asking. Nothing has to reach a session's row
-- to end it, so no session survives because it was opened while a revocation was being committed.

CREATE TABLE siwa.account_sessions (
    session_id   text COLLATE "C" NOT NULL,
    account_id   bigint NOT NULL,
    app_id       text COLLATE "C" NOT NULL,
    created_at   timestamptz NOT NULL,
    expires_at   timestamptz,
    closed_at    timestamptz,
    close_reason text,
    CONSTRAINT account_sessions_pkey PRIMARY KEY (session_id),
    CONSTRAINT account_sessions_consent_exists
        FOREIGN KEY (account_id, app_id) REFERENCES siwa.consents (account_id, app_id),
    CONSTRAINT account_sessions_session_id_is_not_empty CHECK (session_id <> ''),
    CONSTRAINT account_sessions_expire_after_creation CHECK (expires_at > created_at),
    CONSTRAINT account_sessions_closed_for_a_reason CHECK ((closed_at IS NULL) = (close_reason IS NULL)),
    CONSTRAINT account_sessions_close_reason_is_known CHECK (close_reason IN ('signed-out', 'operator'))
) WITH (fillfactor = 80);
CREATE INDEX account_sessions_consent ON siwa.account_sessions (account_id, app_id);
-- For people who look sessions through, the newest first. It never changes, so that closing a session stays a HOT update.
CREATE INDEX account_sessions_created_at ON siwa.account_sessions (created_at);
COMMENT ON TABLE siwa.account_sessions IS 'The sessions as applications opened and closed them. Read them through siwa.sessions.';
COMMENT ON COLUMN siwa.account_sessions.session_id IS
    'The application''s own name for the session. An identifier or a digest: never a bearer token itself.';
COMMENT ON COLUMN siwa.account_sessions.closed_at IS 'Closed by the application or an operator; not set by notifications.';

CREATE VIEW siwa.sessions AS
SELECT
    s.session_id,
    a.team_id,
    a.sub,
    s.app_id,
    s.created_at,
    s.expires_at,
    e.ended_at,
    CASE
        WHEN e.ended_at = e.deletion THEN 'account-deleted'
        WHEN e.ended_at = e.revocation THEN 'consent-revoked'
        WHEN e.ended_at = e.closing THEN s.close_reason
    END AS end_reason,
    s.account_id
FROM siwa.account_sessions AS s
JOIN siwa.accounts AS a USING (account_id)
JOIN siwa.consents AS c USING (account_id, app_id)
CROSS JOIN LATERAL (
    SELECT
        x.deletion,
        x.revocation,
        x.closing,
        least(x.deletion, x.revocation, x.closing) AS ended_at
    FROM (
        SELECT
            -- A deletion ends the session whatever its age; one opened afterwards was never live.
            CASE WHEN a.deleted_at IS NOT NULL THEN greatest(s.created_at, a.deleted_at) END AS deletion,
            CASE WHEN c.revoked_at >= s.created_at THEN c.revoked_at END AS revocation,
            s.closed_at AS closing
    ) AS x
) AS e;
COMMENT ON VIEW siwa.sessions IS
    'Every session with its end: ended_at is null while it lives (expiry aside), else the earliest cause, by Apple''s event_time.';
COMMENT ON COLUMN siwa.sessions.end_reason IS 'consent-revoked, account-deleted, signed-out or operator.';

CREATE VIEW siwa.live_sessions AS
SELECT session_id, team_id, sub, app_id, created_at, expires_at, account_id
FROM siwa.sessions
WHERE ended_at IS NULL AND (expires_at IS NULL OR expires_at > now());
COMMENT ON VIEW siwa.live_sessions IS 'The sessions that are live now: not ended and not expired.';

CREATE FUNCTION siwa.refuse_future_time(what text, moment timestamptz) RETURNS void
    LANGUAGE plpgsql STABLE
AS $$
BEGIN
    -- A time that lies ahead would win against every revocation until it is reached.
    IF moment > clock_timestamp() + interval '5 minutes' THEN
        RAISE EXCEPTION '% lies more than five minutes in the future', what
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Pass the time at which it happened, and check the clock.';
    END IF;
END
$$;
COMMENT ON FUNCTION siwa.refuse_future_time IS 'Raises when the time lies further ahead than clocks may differ.';

CREATE FUNCTION siwa.app_group(client_id text) RETURNS siwa.clients
    LANGUAGE plpgsql STABLE
AS $$
DECLARE
    found_client siwa.clients;
BEGIN
    SELECT * INTO found_client FROM siwa.clients AS k WHERE k.client_id = app_group.client_id;
    IF found_client.client_id IS NULL THEN
        RAISE EXCEPTION 'client id % is not registered', quote_nullable(app_group.client_id)
            USING ERRCODE = 'foreign_key_violation',
                HINT = 'Add it to its app group in SIWAD_APPS and restart siwad, which writes siwa.clients.';
    END IF;
    RETURN found_client;
END
$$;
COMMENT ON FUNCTION siwa.app_group IS 'The app group that a client id belongs to; raises for one that is not configured.';

CREATE FUNCTION siwa.ensure_consent(team_id text, sub text, app_id text) RETURNS bigint
    LANGUAGE plpgsql
AS $$
DECLARE
    person bigint;
BEGIN
    IF coalesce(ensure_consent.sub, '') = '' THEN
        RAISE EXCEPTION 'sub is empty' USING ERRCODE = 'invalid_parameter_value', HINT = 'Pass the sub of the identity token.';
    END IF;
    SELECT a.account_id INTO person FROM siwa.accounts AS a
    WHERE a.sub = ensure_consent.sub AND a.team_id = ensure_consent.team_id;
    IF person IS NULL THEN
        INSERT INTO siwa.accounts (team_id, sub) VALUES (ensure_consent.team_id, ensure_consent.sub)
        ON CONFLICT ON CONSTRAINT accounts_person_is_unique DO NOTHING;
        SELECT a.account_id INTO STRICT person FROM siwa.accounts AS a
        WHERE a.sub = ensure_consent.sub AND a.team_id = ensure_consent.team_id;
    END IF;
    IF NOT EXISTS (SELECT FROM siwa.consents AS c WHERE c.account_id = person AND c.app_id = ensure_consent.app_id) THEN
        INSERT INTO siwa.consents (account_id, app_id) VALUES (person, ensure_consent.app_id)
        ON CONFLICT ON CONSTRAINT consents_pkey DO NOTHING;
    END IF;
    RETURN person;
END
$$;
COMMENT ON FUNCTION siwa.ensure_consent IS 'The account id of a person, whose account and consent rows exist afterwards.';

CREATE FUNCTION siwa.record_sign_in(
    client_id        text,
    sub              text,
    email            text DEFAULT NULL,
    email_is_private boolean DEFAULT NULL,
    signed_in_at     timestamptz DEFAULT now()
) RETURNS bigint
    LANGUAGE plpgsql
AS $$
DECLARE
    app_group siwa.clients := siwa.app_group(record_sign_in.client_id);
    person    bigint;
    was       siwa.consents;
    moment    timestamptz := coalesce(record_sign_in.signed_in_at, now());
    address   text := nullif(record_sign_in.email, '');
BEGIN
    PERFORM siwa.refuse_future_time('signed_in_at', moment);
    person := siwa.ensure_consent(app_group.team_id, record_sign_in.sub, app_group.app_id);

    PERFORM FROM siwa.accounts AS a WHERE a.account_id = person AND a.deleted_at IS NOT NULL;
    IF FOUND THEN
        RAISE EXCEPTION 'the Apple Account of account % was deleted', person
            USING ERRCODE = 'object_not_in_prerequisite_state',
                HINT = 'Apple does not use this sub again: check the identity token, and treat the person as signed out.';
    END IF;

    -- Account before consent: the order in which every writer locks.
    IF address IS NOT NULL THEN
        UPDATE siwa.accounts AS a
        SET email = address,
            email_is_private = record_sign_in.email_is_private,
            email_observed_at = moment,
            revision = a.revision + 1
        WHERE a.account_id = person
            AND siwa.observation_wins(
                moment, address, record_sign_in.email_is_private, a.email_observed_at, a.email, a.email_is_private);
    END IF;

    SELECT c.* INTO STRICT was FROM siwa.consents AS c
    WHERE c.account_id = person AND c.app_id = app_group.app_id
    FOR UPDATE;
    IF was.authorized_at IS NULL OR was.authorized_at < moment THEN
        UPDATE siwa.consents AS c SET authorized_at = moment, revision = c.revision + 1
        WHERE c.account_id = person AND c.app_id = app_group.app_id;
        INSERT INTO siwa.account_changes (account_id, app_id, facet, from_state, to_state, event_time)
        SELECT person, app_group.app_id, 'consent', s.from_state, s.to_state, moment
        FROM (
            SELECT
                siwa.consent_state(was.authorized_at, was.revoked_at) AS from_state,
                siwa.consent_state(moment, was.revoked_at) AS to_state
        ) AS s
        WHERE s.from_state <> s.to_state;
    END IF;
    RETURN person;
END
$$;
COMMENT ON FUNCTION siwa.record_sign_in IS
    'Records that a person signed in; returns the account id. Call it after the identity token was verified. Any client id of a
group will do. Idempotent. Raises foreign_key_violation for an unknown client id, object_not_in_prerequisite_state for a
deleted account, invalid_parameter_value for an empty sub or a time more than five minutes ahead.';

CREATE FUNCTION siwa.open_session(
    client_id  text,
    sub        text,
    session_id text,
    created_at timestamptz DEFAULT now(),
    expires_at timestamptz DEFAULT NULL
) RETURNS boolean
    LANGUAGE plpgsql
AS $$
DECLARE
    app_group siwa.clients := siwa.app_group(open_session.client_id);
    person    bigint;
    known     siwa.account_sessions;
BEGIN
    PERFORM siwa.refuse_future_time('created_at', open_session.created_at);
    person := siwa.ensure_consent(app_group.team_id, open_session.sub, app_group.app_id);
    INSERT INTO siwa.account_sessions (session_id, account_id, app_id, created_at, expires_at)
    VALUES (
        open_session.session_id, person, app_group.app_id, coalesce(open_session.created_at, now()), open_session.expires_at)
    ON CONFLICT ON CONSTRAINT account_sessions_pkey DO NOTHING;
    IF NOT FOUND THEN
        SELECT s.* INTO STRICT known FROM siwa.account_sessions AS s WHERE s.session_id = open_session.session_id;
        IF known.account_id <> person OR known.app_id <> app_group.app_id THEN
            RAISE EXCEPTION 'the session id is taken by another person or app'
                USING ERRCODE = 'unique_violation', HINT = 'Use a session id that is unique among all applications.';
        END IF;
    END IF;
    RETURN siwa.session_is_live(open_session.session_id);
END
$$;
COMMENT ON FUNCTION siwa.open_session IS
    'Opens a session; returns whether it is live. It is born ended when its consent was revoked at or after created_at or the
account is deleted. Idempotent for the same session id and person; raises unique_violation when another person holds the id,
foreign_key_violation for an unknown client id.';

CREATE FUNCTION siwa.end_session(session_id text, reason text DEFAULT 'signed-out') RETURNS boolean
    LANGUAGE plpgsql
AS $$
BEGIN
    IF reason IS NULL OR reason NOT IN ('signed-out', 'operator') THEN
        RAISE EXCEPTION 'reason % is not one of signed-out, operator', quote_nullable(reason)
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Leave the reason out when the person signed out.';
    END IF;
    IF NOT siwa.session_is_live(end_session.session_id) THEN
        RETURN false;
    END IF;
    UPDATE siwa.account_sessions AS s
    SET closed_at = greatest(now(), s.created_at), close_reason = reason
    WHERE s.session_id = end_session.session_id AND s.closed_at IS NULL;
    RETURN FOUND;
END
$$;
COMMENT ON FUNCTION siwa.end_session IS
    'Ends a live session; reason signed-out or operator. Returns whether it ended one: false for an unknown or ended session.';

CREATE FUNCTION siwa.session_is_live(session_id text) RETURNS boolean
    LANGUAGE sql STABLE
    RETURN EXISTS (SELECT FROM siwa.live_sessions AS s WHERE s.session_id = session_is_live.session_id);
COMMENT ON FUNCTION siwa.session_is_live IS 'Whether the session exists, has not ended and has not expired. For every request.';
