-- The functions, where what they found in the database or in their caller's session could lead them astray.
--
-- Promise: replaced in place, so that owners and rights stay as they are; what worked before gives the same results.

CREATE OR REPLACE FUNCTION siwa.ensure_notification_partitions(from_time timestamptz, to_time timestamptz) RETURNS integer
    LANGUAGE plpgsql
    -- The daemon's role has no right to create tables: this one thing is done with the owner's.
    SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
    -- A month's bounds go through text, where other styles of the caller's write zones that can't be read again.
    SET DateStyle = 'ISO, YMD'
    SET TimeZone = 'UTC'
AS $$
DECLARE
    month_start timestamp := date_trunc('month', from_time AT TIME ZONE 'UTC');
    last_month  timestamp := date_trunc('month', to_time AT TIME ZONE 'UTC');
    partition   text;
    is_locked   boolean;
    is_attached boolean;
    created     integer := 0;
BEGIN
    -- Everybody may execute a function; whoever may not write notifications needs no room for them.
    IF NOT has_table_privilege(session_user, 'siwa.notifications', 'INSERT') THEN
        RAISE EXCEPTION 'role % may not write notifications', quote_ident(session_user)
            USING ERRCODE = 'insufficient_privilege', HINT = 'Grant it INSERT on siwa.notifications.';
    END IF;
    IF from_time IS NULL OR to_time IS NULL OR last_month > month_start + interval '20 years' THEN
        RAISE EXCEPTION 'from_time and to_time span at most twenty years' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    WHILE month_start <= last_month LOOP
        partition := format('notifications_y%sm%s', to_char(month_start, 'YYYY'), to_char(month_start, 'MM'));
        is_locked := false;
        LOOP
            -- Null: there is nothing of that name. Only what is attached takes a month's notifications. By a query, not
            -- to_regclass: that may still remember, from before the lock, that there was none.
            is_attached := (
                SELECT i.inhrelid IS NOT NULL
                FROM pg_class AS c
                LEFT JOIN pg_inherits AS i
                    ON i.inhrelid = c.oid AND i.inhparent = 'siwa.notifications'::regclass AND NOT i.inhdetachpending
                WHERE c.relname = partition AND c.relnamespace = 'siwa'::regnamespace
            );
            EXIT WHEN is_attached OR is_locked;
            -- Two daemons may find the same month missing.
            PERFORM pg_advisory_xact_lock(hashtext('siwa.notifications'), hashtext(partition));
            is_locked := true;
        END LOOP;
        IF NOT is_attached THEN
            -- Not attached here: what an operator took out on purpose would come back.
            RAISE EXCEPTION 'siwa.% exists but is not attached to siwa.notifications', quote_ident(partition)
                USING ERRCODE = 'object_not_in_prerequisite_state',
                    -- Renaming it would not do: its indexes keep their names, and those of another table would need them.
                    HINT = format(
                        'Attach it again, ALTER TABLE siwa.notifications ATTACH PARTITION siwa.%1$I FOR VALUES FROM (%2$L) TO '
                            || '(%3$L), or move it away, ALTER TABLE siwa.%1$I SET SCHEMA to another one.',
                        partition,
                        month_start AT TIME ZONE 'UTC',
                        (month_start + interval '1 month') AT TIME ZONE 'UTC');
        ELSIF is_attached IS NULL THEN
            EXECUTE format('CREATE TABLE siwa.%I (LIKE siwa.notifications INCLUDING ALL)', partition);
            -- The month bounds a jti's uniqueness: an index over all months would have to be searched in each.
            EXECUTE format('ALTER TABLE siwa.%I ADD CONSTRAINT %I UNIQUE (jti)', partition, partition || '_jti_is_unique');
            EXECUTE format('CREATE INDEX %I ON siwa.%I (received_at)', partition || '_received_at', partition);
            -- Created apart and attached: that does not wait for, or stop, writers to the other months.
            EXECUTE format(
                'ALTER TABLE siwa.notifications ATTACH PARTITION siwa.%I FOR VALUES FROM (%L) TO (%L)',
                partition,
                month_start AT TIME ZONE 'UTC',
                (month_start + interval '1 month') AT TIME ZONE 'UTC');
            created := created + 1;
        END IF;
        month_start := month_start + interval '1 month';
    END LOOP;
    RETURN created;
END
$$;
COMMENT ON FUNCTION siwa.ensure_notification_partitions IS
    'Creates the missing monthly partitions of siwa.notifications between two times; returns how many. Raises
object_not_in_prerequisite_state for a month whose table was detached and kept its name.';

CREATE OR REPLACE FUNCTION siwa.drop_notification_partition(older_than timestamptz) RETURNS text
    LANGUAGE plpgsql
    -- The daemon's role has no right to drop tables: this one thing is done with the owner's.
    SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
    -- Detaching waits for whoever reads or writes notifications, and whoever comes meanwhile waits behind it.
    SET lock_timeout = '200ms'
AS $$
DECLARE
    partition text;
BEGIN
    -- Everybody may execute a function; this does no more than a DELETE could, and asks for the right to that.
    IF NOT has_table_privilege(session_user, 'siwa.notifications', 'DELETE') THEN
        RAISE EXCEPTION 'role % may not delete notifications', quote_ident(session_user)
            USING ERRCODE = 'insufficient_privilege', HINT = 'Grant it DELETE on siwa.notifications.';
    END IF;
    IF older_than IS NULL OR older_than > now() - interval '1 day' THEN
        RAISE EXCEPTION 'older_than lies less than a day back' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    SELECT c.relname INTO partition
    FROM pg_inherits AS i
    JOIN pg_class AS c ON c.oid = i.inhrelid
    -- Without a backslash, which stands for something else where the caller's standard_conforming_strings is off.
    CROSS JOIN LATERAL regexp_match(c.relname, '^notifications_y([0-9]{4,})m([0-9][0-9])$') AS m (parts)
    CROSS JOIN LATERAL make_timestamp(m.parts[1]::integer, m.parts[2]::integer, 1, 0, 0, 0) AS s (month_start)
    WHERE i.inhparent = 'siwa.notifications'::regclass
        AND s.month_start + interval '1 month' <= older_than AT TIME ZONE 'UTC'
    ORDER BY s.month_start
    LIMIT 1;
    IF partition IS NOT NULL THEN
        -- In one transaction, so that nothing detached is ever left behind. The files go after its locks have.
        EXECUTE format('ALTER TABLE siwa.notifications DETACH PARTITION siwa.%I', partition);
        EXECUTE format('DROP TABLE siwa.%I', partition);
    END IF;
    RETURN partition;
END
$$;

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

CREATE OR REPLACE FUNCTION siwa.refuse_future_time(what text, moment timestamptz) RETURNS void
    LANGUAGE plpgsql STABLE
AS $$
BEGIN
    -- Nothing happened at an infinity, and a register that stands at one never moves again.
    IF NOT isfinite(moment) THEN
        RAISE EXCEPTION '% is %, which is no point in time', what, moment
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Pass the time at which it happened.';
    END IF;
    -- A time that lies ahead would win against every revocation until it is reached.
    IF moment > clock_timestamp() + interval '5 minutes' THEN
        RAISE EXCEPTION '% lies more than five minutes in the future', what
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Pass the time at which it happened, and check the clock.';
    END IF;
END
$$;
COMMENT ON FUNCTION siwa.refuse_future_time IS
    'Raises when the time lies further ahead than clocks may differ, or is an infinity.';

CREATE OR REPLACE FUNCTION siwa.open_session(
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
    IF open_session.expires_at = '-infinity' THEN
        RAISE EXCEPTION 'expires_at is -infinity, which is no point in time'
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Leave it out for a session that does not expire.';
    END IF;
    person := siwa.ensure_consent(app_group.team_id, open_session.sub, app_group.app_id);
    INSERT INTO siwa.account_sessions (session_id, account_id, app_id, created_at, expires_at)
    VALUES (
        open_session.session_id, person, app_group.app_id, coalesce(open_session.created_at, now()),
        -- To expire at no time is written in one way only.
        nullif(open_session.expires_at, 'infinity'))
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
COMMENT ON FUNCTION siwa.record_sign_in IS
    'Records that a person signed in; returns the account id. Call it after the identity token was verified. Any client id of a
group will do. Idempotent. Raises foreign_key_violation for an unknown client id, object_not_in_prerequisite_state for a
deleted account, invalid_parameter_value for an empty sub, an infinite time or one more than five minutes ahead.';
COMMENT ON FUNCTION siwa.open_session IS
    'Opens a session; returns whether it is live. It is born ended when its consent was revoked at or after created_at or the
account is deleted. expires_at null or infinity: it does not expire. Idempotent for the same session id and person; raises
unique_violation when another person holds the id, foreign_key_violation for an unknown client id, invalid_parameter_value for
an infinite created_at or one more than five minutes ahead.';

CREATE OR REPLACE FUNCTION siwa.app_group(client_id text) RETURNS siwa.clients
    LANGUAGE plpgsql STABLE
AS $$
DECLARE
    found_client siwa.clients;
BEGIN
    SELECT * INTO found_client FROM siwa.clients AS k WHERE k.client_id = app_group.client_id;
    IF found_client.client_id IS NULL THEN
        RAISE EXCEPTION 'client id % is not registered', quote_nullable(app_group.client_id)
            USING ERRCODE = 'foreign_key_violation',
                HINT = 'Add it to its app group in SIWAD_APPS and reload siwad (SIGHUP), which writes siwa.clients.';
    END IF;
    RETURN found_client;
END
$$;
COMMENT ON TABLE siwa.clients IS
    'The client ids of every app group, as SIWAD_APPS names them; brought up to date whenever the daemon starts or reloads.';
