-- The functions that applications call: sign-ins and sessions.
--
-- They run with the owner's rights, so an application needs no right on any table. Each function pins its search_path, so that an
-- object in another schema cannot replace one of PostgreSQL's. Writers lock the account first, then the consent, then sessions.
--
-- SQLSTATEs: SW001 unknown client id, SW002 deleted account, SW003 no sign-in recorded, SW004 session id taken by another person,
-- SW005 expiry not after opening, SW006 sign-in too far ahead; invalid_parameter_value for other invalid arguments.

CREATE FUNCTION siwa.app_group(client_id text) RETURNS siwa.clients
    LANGUAGE plpgsql STABLE
    SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    found_client siwa.clients;
BEGIN
    SELECT * INTO found_client FROM siwa.clients AS k WHERE k.client_id = app_group.client_id;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'client id % is not registered', quote_nullable(app_group.client_id)
            USING ERRCODE = 'SW001',
                HINT = 'Add it to its app group in SIWAD_APPS and reload siwad (SIGHUP), which writes siwa.clients.';
    END IF;
    RETURN found_client;
END
$$;
COMMENT ON FUNCTION siwa.app_group IS 'Returns the app group of a client id. Raises SW001 if the client id is not registered.';

CREATE FUNCTION siwa.check_identifier(what text, value text) RETURNS void
    LANGUAGE plpgsql IMMUTABLE
    SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF value IS NULL OR value = '' THEN
        RAISE EXCEPTION '% is empty', what
            USING ERRCODE = 'invalid_parameter_value', HINT = format('Pass the %s as a text that is not empty.', what);
    ELSIF octet_length(value) > 1024 THEN
        RAISE EXCEPTION '% has % bytes; at most 1024 are allowed', what, octet_length(value)
            USING ERRCODE = 'invalid_parameter_value',
                HINT = CASE what
                    WHEN 'session_id' THEN 'Pass an identifier of the session, or a digest of its token.'
                    ELSE format('Pass the %s of the identity token.', what)
                END;
    END IF;
END
$$;
COMMENT ON FUNCTION siwa.check_identifier IS 'Raises invalid_parameter_value unless the value has 1 to 1024 bytes.';

CREATE FUNCTION siwa.check_time(what text, moment timestamptz, sqlstate_if_ahead text) RETURNS void
    LANGUAGE plpgsql STABLE
    SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    -- A register that holds an infinity would never move again.
    IF NOT isfinite(moment) THEN
        RAISE EXCEPTION '% is %, which is not a point in time', what, moment
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Pass the time at which it happened.';
    END IF;
    -- A time in the future would win against every revocation until then.
    IF moment > clock_timestamp() + interval '5 minutes' THEN
        RAISE EXCEPTION '% is more than five minutes ahead', what
            USING ERRCODE = sqlstate_if_ahead, HINT = 'Pass the time at which it happened, and check the clocks.';
    END IF;
END
$$;
COMMENT ON FUNCTION siwa.check_time IS
    'Raises the given SQLSTATE if a time is more than five minutes ahead, and invalid_parameter_value if it is infinite.';

CREATE FUNCTION siwa.session_expiry(opened_at timestamptz, expires_at timestamptz) RETURNS timestamptz
    LANGUAGE plpgsql IMMUTABLE
    SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF expires_at <= opened_at THEN
        RAISE EXCEPTION 'expires_at is not after the opening of the session'
            USING ERRCODE = 'SW005', HINT = 'Pass a later time, or null for a session that does not expire.';
    END IF;
    -- Infinity and null both mean that the session does not expire. Only null is stored.
    RETURN nullif(expires_at, 'infinity');
END
$$;
COMMENT ON FUNCTION siwa.session_expiry IS 'Returns the expiry to store. Raises SW005 if it is not after the opening.';

CREATE FUNCTION siwa.check_session_end_reason(reason text) RETURNS void
    LANGUAGE plpgsql IMMUTABLE
    SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF reason IS NULL OR reason NOT IN ('signed-out', 'operator') THEN
        RAISE EXCEPTION 'reason % is not one of signed-out, operator', quote_nullable(reason)
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Omit the reason when the person signed out.';
    END IF;
END
$$;
COMMENT ON FUNCTION siwa.check_session_end_reason IS
    'Raises invalid_parameter_value unless the reason is signed-out or operator.';

CREATE FUNCTION siwa.record_sign_in(
    client_id        text,
    sub              text,
    email            text DEFAULT NULL,
    email_is_private boolean DEFAULT NULL,
    signed_in_at     timestamptz DEFAULT now()
) RETURNS bigint
    LANGUAGE plpgsql
    SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    app_group    siwa.clients := siwa.app_group(record_sign_in.client_id);
    account      siwa.accounts;
    consent      siwa.consents;
    moment       timestamptz := coalesce(record_sign_in.signed_in_at, now());
    address      text := nullif(record_sign_in.email, '');
    mail_was     text;
    mail_is      text;
    consent_was  text;
    consent_is   text;
BEGIN
    PERFORM siwa.check_identifier('sub', record_sign_in.sub);
    PERFORM siwa.check_time('signed_in_at', moment, 'SW006');
    IF octet_length(address) > 1024 THEN
        RAISE EXCEPTION 'email has % bytes; at most 1024 are allowed', octet_length(address)
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Pass the email of the identity token.';
    END IF;

    LOOP
        -- Account before consent, as every writer locks. Not FOR UPDATE, which would wait for every transaction that has
        -- opened a session, because its foreign keys lock these rows.
        SELECT a.* INTO account FROM siwa.accounts AS a
        WHERE a.sub = record_sign_in.sub AND a.team_id = app_group.team_id
        FOR NO KEY UPDATE;
        EXIT WHEN FOUND;
        INSERT INTO siwa.accounts (team_id, sub) VALUES (app_group.team_id, record_sign_in.sub)
        ON CONFLICT ON CONSTRAINT accounts_person_is_unique DO NOTHING;
    END LOOP;
    IF account.deleted_at IS NOT NULL THEN
        RAISE EXCEPTION 'the Apple Account of account % was deleted', account.account_id
            USING ERRCODE = 'SW002',
                HINT = 'Apple does not use this sub again: check the identity token, and treat the person as signed out.';
    END IF;
    LOOP
        SELECT c.* INTO consent FROM siwa.consents AS c
        WHERE c.account_id = account.account_id AND c.app_id = app_group.app_id
        FOR NO KEY UPDATE;
        EXIT WHEN FOUND;
        INSERT INTO siwa.consents (account_id, app_id) VALUES (account.account_id, app_group.app_id)
        ON CONFLICT ON CONSTRAINT consents_pkey DO NOTHING;
    END LOOP;

    IF siwa.observation_wins(
        moment, address, record_sign_in.email_is_private, account.email_observed_at, account.email, account.email_is_private)
        AND address IS NOT NULL
    THEN
        UPDATE siwa.accounts AS a
        SET email = address,
            email_is_private = record_sign_in.email_is_private,
            email_observed_at = moment,
            revision = a.revision + 1
        WHERE a.account_id = account.account_id;
        mail_was := siwa.email_state(
            account.forwarding_disabled_at, account.forwarding_enabled_at, account.email_is_private);
        mail_is := siwa.email_state(
            account.forwarding_disabled_at, account.forwarding_enabled_at, record_sign_in.email_is_private);
        IF mail_was <> mail_is THEN
            INSERT INTO siwa.account_changes (account_id, app_id, facet, from_state, to_state, event_time)
            VALUES (account.account_id, app_group.app_id, 'email', mail_was, mail_is, moment);
        END IF;
    END IF;

    IF consent.authorized_at IS NULL OR consent.authorized_at < moment THEN
        UPDATE siwa.consents AS c SET authorized_at = moment, revision = c.revision + 1
        WHERE c.account_id = account.account_id AND c.app_id = app_group.app_id;
        consent_was := siwa.consent_state(consent.authorized_at, consent.revoked_at);
        consent_is := siwa.consent_state(moment, consent.revoked_at);
        IF consent_was <> consent_is THEN
            INSERT INTO siwa.account_changes (account_id, app_id, facet, from_state, to_state, event_time)
            VALUES (account.account_id, app_group.app_id, 'consent', consent_was, consent_is, moment);
        END IF;
    END IF;
    RETURN account.account_id;
END
$$;
COMMENT ON FUNCTION siwa.record_sign_in IS
    'Records that a person signed in, and returns the account id. Call it after you verified the identity token, with any
client id of the app group and with iat of the token as signed_in_at. Idempotent. Raises SW001 for an unknown client id, SW002
for a deleted account, SW006 for a time more than five minutes ahead, invalid_parameter_value for an empty or overlong sub or
an infinite time.';

CREATE FUNCTION siwa.session_is_live(session_id text) RETURNS boolean
    -- Not LANGUAGE sql, which PostgreSQL plans again for each call.
    LANGUAGE plpgsql STABLE
    SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    -- The condition of siwa.live_sessions, written on the tables because that costs a tenth less than the view. The consent and
    -- the account are read only for a session that is neither closed nor expired.
    RETURN coalesce(
        (
            SELECT
                s.closed_at IS NULL
                AND (s.expires_at IS NULL OR s.expires_at > now())
                AND (
                    SELECT c.revoked_at IS NULL OR c.revoked_at < s.signed_in_at
                    FROM siwa.consents AS c
                    WHERE c.account_id = s.account_id AND c.app_id = s.app_id
                )
                AND (SELECT a.deleted_at IS NULL FROM siwa.accounts AS a WHERE a.account_id = s.account_id)
            FROM siwa.account_sessions AS s
            WHERE s.session_id = session_is_live.session_id
        ),
        false);
END
$$;
COMMENT ON FUNCTION siwa.session_is_live IS
    'Returns whether the session exists, has not ended and has not expired. Applications call it for every request.';

CREATE FUNCTION siwa.open_session(
    client_id  text,
    sub        text,
    session_id text,
    created_at timestamptz DEFAULT now(),
    expires_at timestamptz DEFAULT NULL
) RETURNS boolean
    LANGUAGE plpgsql
    SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    app_group siwa.clients := siwa.app_group(open_session.client_id);
    opened_at timestamptz := coalesce(open_session.created_at, now());
    consent   siwa.consents;
    stored    siwa.account_sessions;
BEGIN
    PERFORM siwa.check_identifier('sub', open_session.sub);
    PERFORM siwa.check_identifier('session_id', open_session.session_id);
    PERFORM siwa.check_time('created_at', opened_at, 'invalid_parameter_value');
    SELECT c.* INTO consent
    FROM siwa.accounts AS a
    JOIN siwa.consents AS c USING (account_id)
    WHERE a.sub = open_session.sub AND a.team_id = app_group.team_id AND c.app_id = app_group.app_id;
    IF consent.authorized_at IS NULL THEN
        RAISE EXCEPTION 'no sign-in of this person to app group % is recorded', app_group.app_id
            USING ERRCODE = 'SW003',
                HINT = 'Call siwa.record_sign_in first, with the iat of the identity token as signed_in_at.';
    END IF;
    LOOP
        -- The stored session first: the arguments of a repeated call may have become invalid since the session was opened.
        SELECT s.* INTO stored FROM siwa.account_sessions AS s WHERE s.session_id = open_session.session_id;
        IF FOUND AND (stored.account_id <> consent.account_id OR stored.app_id <> app_group.app_id) THEN
            RAISE EXCEPTION 'the session id belongs to another person or app group'
                USING ERRCODE = 'SW004', HINT = 'Use session ids that are unique among all applications.';
        END IF;
        EXIT WHEN FOUND;
        INSERT INTO siwa.account_sessions (session_id, account_id, app_id, created_at, signed_in_at, expires_at)
        VALUES (
            open_session.session_id, consent.account_id, app_group.app_id, opened_at,
            -- The application may present an older identity token late. The session then rests on that sign-in.
            least(consent.authorized_at, opened_at), siwa.session_expiry(opened_at, open_session.expires_at))
        ON CONFLICT ON CONSTRAINT account_sessions_pkey DO NOTHING;
        -- Not inserted: another transaction has just committed the same id.
        EXIT WHEN FOUND;
    END LOOP;
    RETURN siwa.session_is_live(open_session.session_id);
END
$$;
COMMENT ON FUNCTION siwa.open_session IS
    'Opens a session that rests on the recorded sign-in, and returns whether it is live. It is ended from the start if that
sign-in was revoked or the account is deleted. If expires_at is null or infinity, it does not expire. A second call with the
same id for the same person returns the result for the stored session. Raises SW001 for an unknown client id, SW003 if no sign-
in is recorded, SW004 if another person has the id, SW005 if it would expire before it opens, invalid_parameter_value for a
created_at that is infinite or more than five minutes ahead.';

CREATE FUNCTION siwa.rotate_session(old_id text, new_id text, expires_at timestamptz DEFAULT NULL) RETURNS boolean
    LANGUAGE plpgsql
    SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    old    siwa.account_sessions;
    stored siwa.account_sessions;
    opened_at timestamptz;
    expiry    timestamptz;
BEGIN
    PERFORM siwa.check_identifier('session_id', rotate_session.old_id);
    PERFORM siwa.check_identifier('session_id', rotate_session.new_id);
    SELECT s.* INTO old FROM siwa.account_sessions AS s WHERE s.session_id = rotate_session.old_id FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    IF siwa.session_is_live(old.session_id) THEN
        opened_at := greatest(now(), old.signed_in_at);
        expiry := siwa.session_expiry(opened_at, coalesce(rotate_session.expires_at, old.expires_at, 'infinity'));
        INSERT INTO siwa.account_sessions (session_id, account_id, app_id, created_at, signed_in_at, expires_at)
        VALUES (rotate_session.new_id, old.account_id, old.app_id, opened_at, old.signed_in_at, expiry)
        ON CONFLICT ON CONSTRAINT account_sessions_pkey DO NOTHING;
        IF NOT FOUND THEN
            RAISE EXCEPTION 'the new session id is taken'
                USING ERRCODE = 'SW004', HINT = 'Use session ids that are unique among all applications.';
        END IF;
        UPDATE siwa.account_sessions AS s
        SET closed_at = greatest(now(), s.created_at), close_reason = 'rotated'
        WHERE s.session_id = old.session_id;
        RETURN true;
    END IF;
    SELECT s.* INTO stored FROM siwa.account_sessions AS s WHERE s.session_id = rotate_session.new_id;
    IF FOUND AND (stored.account_id <> old.account_id OR stored.app_id <> old.app_id) THEN
        RAISE EXCEPTION 'the new session id belongs to another person or app group'
            USING ERRCODE = 'SW004', HINT = 'Use session ids that are unique among all applications.';
    END IF;
    -- The application repeats a rotation because it lost the result.
    RETURN FOUND
        AND old.close_reason IS NOT DISTINCT FROM 'rotated'
        AND stored.signed_in_at = old.signed_in_at
        AND siwa.session_is_live(stored.session_id);
END
$$;
COMMENT ON FUNCTION siwa.rotate_session IS
    'Replaces a live session with one of another id that rests on the same sign-in, and returns whether the new session is
live. The old session ends with reason rotated. If expires_at is null, the new session expires when the old one would have.
Returns false for an unknown, ended or expired session. A repeated call returns the result for the stored session. Raises SW004
if the new id is taken, SW005 if the new session would expire before it opens.';

CREATE FUNCTION siwa.extend_session(session_id text, expires_at timestamptz) RETURNS boolean
    LANGUAGE plpgsql
    SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    stored siwa.account_sessions;
    expiry timestamptz;
BEGIN
    SELECT s.* INTO stored FROM siwa.account_sessions AS s
    WHERE s.session_id = extend_session.session_id
    FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    expiry := siwa.session_expiry(stored.created_at, extend_session.expires_at);
    IF NOT siwa.session_is_live(stored.session_id) THEN
        RETURN false;
    END IF;
    UPDATE siwa.account_sessions AS s SET expires_at = expiry
    WHERE s.session_id = stored.session_id AND s.expires_at IS DISTINCT FROM expiry;
    RETURN expiry IS NULL OR expiry > now();
END
$$;
COMMENT ON FUNCTION siwa.extend_session IS
    'Changes the expiry of a live session, and returns whether it is live. Null or infinity: the session does not expire.
Returns false for an unknown, ended or expired session and changes nothing. Raises SW005 if it would expire before it opened.';

CREATE FUNCTION siwa.end_session(session_id text, reason text DEFAULT 'signed-out') RETURNS boolean
    LANGUAGE plpgsql
    SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    was_live boolean;
BEGIN
    PERFORM siwa.check_session_end_reason(reason);
    was_live := siwa.session_is_live(end_session.session_id);
    -- Closes a session that a revocation has ended too: a later revocation moves that end, but not past this time.
    UPDATE siwa.account_sessions AS s
    SET closed_at = greatest(now(), s.created_at), close_reason = reason
    WHERE s.session_id = end_session.session_id
        AND s.closed_at IS NULL
        AND (s.expires_at IS NULL OR s.expires_at > now());
    RETURN FOUND AND was_live;
END
$$;
COMMENT ON FUNCTION siwa.end_session IS
    'Ends a live session for the reason signed-out or operator. Returns whether it did: false for an unknown or ended session.';

CREATE FUNCTION siwa.end_sessions(client_id text, sub text, reason text DEFAULT 'signed-out') RETURNS integer
    LANGUAGE plpgsql
    SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    app_group siwa.clients := siwa.app_group(end_sessions.client_id);
    found_live integer;
    ended      integer;
    total      integer := 0;
BEGIN
    PERFORM siwa.check_session_end_reason(reason);
    -- Repeated until a pass finds no live session. A session may be rotated while this function waits for its row: the session
    -- that replaces it is visible only to the next statement.
    LOOP
        SELECT count(*), count(*) FILTER (WHERE siwa.end_session(live.session_id, end_sessions.reason))
        INTO found_live, ended
        FROM (
            SELECT s.session_id
            FROM siwa.live_sessions AS s
            WHERE s.sub = end_sessions.sub AND s.team_id = app_group.team_id AND s.app_id = app_group.app_id
            -- Every writer locks sessions in this order.
            ORDER BY s.session_id
            OFFSET 0
        ) AS live;
        EXIT WHEN found_live = 0;
        total := total + ended;
    END LOOP;
    RETURN total;
END
$$;
COMMENT ON FUNCTION siwa.end_sessions IS
    'Ends all live sessions of a person in an app group, as siwa.end_session does, and returns how many it ended. Raises SW001
for an unknown client id.';

CREATE FUNCTION siwa.sessions_of(client_id text, sub text) RETURNS SETOF siwa.sessions
    LANGUAGE plpgsql STABLE
    SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    app_group siwa.clients := siwa.app_group(sessions_of.client_id);
BEGIN
    RETURN QUERY
        SELECT s.* FROM siwa.sessions AS s
        WHERE s.sub = sessions_of.sub AND s.team_id = app_group.team_id AND s.app_id = app_group.app_id
        ORDER BY s.created_at DESC, s.session_id;
END
$$;
COMMENT ON FUNCTION siwa.sessions_of IS
    'Returns all sessions of a person in an app group, newest first. Raises SW001 for an unknown client id.';
