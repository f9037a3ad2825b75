-- What the order of events decided although it shouldn't, and the order in which rows are locked.

CREATE OR REPLACE FUNCTION siwa.end_session(session_id text, reason text DEFAULT 'signed-out') RETURNS boolean
    LANGUAGE plpgsql
AS $$
DECLARE
    was_live boolean;
BEGIN
    IF reason IS NULL OR reason NOT IN ('signed-out', 'operator') THEN
        RAISE EXCEPTION 'reason % is not one of signed-out, operator', quote_nullable(reason)
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Leave the reason out when the person signed out.';
    END IF;
    was_live := siwa.session_is_live(end_session.session_id);
    -- Also of a session that a revocation has ended: a later one moves that end, but not beyond this.
    UPDATE siwa.account_sessions AS s
    SET closed_at = greatest(now(), s.created_at), close_reason = reason
    WHERE s.session_id = end_session.session_id
        AND s.closed_at IS NULL
        AND (s.expires_at IS NULL OR s.expires_at > now());
    RETURN FOUND AND was_live;
END
$$;
COMMENT ON VIEW siwa.sessions IS
    'Every session with its end: ended_at is null while it lives (expiry aside), else the earliest of its closing, the deletion of
the account and the latest revocation at or after its opening, by Apple''s event_time.';

CREATE OR REPLACE FUNCTION siwa.record_sign_in(
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
    -- Account before consent: the order in which every writer locks, and a consent that is new is locked too.
    IF address IS NOT NULL THEN
        PERFORM FROM siwa.accounts AS a
        WHERE a.team_id = app_group.team_id AND a.sub = record_sign_in.sub
        FOR NO KEY UPDATE;
    END IF;
    person := siwa.ensure_consent(app_group.team_id, record_sign_in.sub, app_group.app_id);

    PERFORM FROM siwa.accounts AS a WHERE a.account_id = person AND a.deleted_at IS NOT NULL;
    IF FOUND THEN
        RAISE EXCEPTION 'the Apple Account of account % was deleted', person
            USING ERRCODE = 'object_not_in_prerequisite_state',
                HINT = 'Apple does not use this sub again: check the identity token, and treat the person as signed out.';
    END IF;

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

    -- Not FOR UPDATE, which waits for every transaction that has opened a session: the foreign key of that holds the consent.
    SELECT c.* INTO STRICT was FROM siwa.consents AS c
    WHERE c.account_id = person AND c.app_id = app_group.app_id
    FOR NO KEY UPDATE;
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

COMMENT ON VIEW siwa.account_history IS
    'One row per change of state. facet: consent, account or email. Ordered by change_id, it is the order of commit for each facet
of a person, the consents of each app group by themselves. A smaller change_id may be committed later: it is no place to go on
from.';
