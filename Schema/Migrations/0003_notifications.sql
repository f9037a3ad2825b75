-- Notifications, the history of the changes that they and sign-ins caused, and the keys that verify them.
--
-- The daemon answers Apple with 200 only after the row in siwa.notifications is committed. Notifications are append-only and
-- partitioned by month of issue, so retention drops whole partitions.

-- PostgreSQL parses and plans the CHECK constraints of a table for every statement that writes to it, but caches the constraints
-- of a domain per connection. The tables that every notification writes to therefore use domains for all but short checks.
CREATE DOMAIN siwa.event_type AS text COLLATE "C" CONSTRAINT event_type_is_known CHECK (
    VALUE IN ('email-disabled', 'email-enabled', 'consent-revoked', 'account-delete', 'account-deleted')
);
COMMENT ON DOMAIN siwa.event_type IS 'Event type in Apple''s spelling.';
CREATE DOMAIN siwa.notification_outcome AS text COLLATE "C" CONSTRAINT notification_outcome_is_known CHECK (
    VALUE IN ('applied', 'superseded', 'unchanged')
);
COMMENT ON DOMAIN siwa.notification_outcome IS 'The effect of a notification; see siwa.notifications.outcome.';
CREATE DOMAIN siwa.notification_source AS text COLLATE "C" CONSTRAINT notification_source_is_known CHECK (
    VALUE IN ('endpoint', 'spool', 'replay')
);
COMMENT ON DOMAIN siwa.notification_source IS
    'How a notification reached the database: from a request, from the spool, or from a replayed dead letter.';
CREATE DOMAIN siwa.state_change AS text COLLATE "C" CONSTRAINT state_change_is_possible CHECK (
    VALUE IN (
        'consent unknown authorized', 'consent unknown revoked',
        'consent authorized authorized', 'consent authorized revoked',
        'consent revoked authorized', 'consent revoked revoked',
        'account active deleted',
        'email deliverable undeliverable', 'email undeliverable deliverable'
    )
);
COMMENT ON DOMAIN siwa.state_change IS
    'A facet, its previous state and its new state. A consent may keep its state: a late revocation can end sessions.';

CREATE TABLE siwa.notifications (
    jti            text COLLATE "C" NOT NULL,
    issued_at      timestamptz NOT NULL,
    received_at    timestamptz NOT NULL,
    recorded_at    timestamptz NOT NULL DEFAULT now(),
    event_time     timestamptz NOT NULL,
    sessions_ended integer NOT NULL,
    team_id        text COLLATE "C" NOT NULL,
    app_id         text COLLATE "C" NOT NULL,
    sub            text COLLATE "C" NOT NULL,
    event_type     siwa.event_type NOT NULL,
    outcome        siwa.notification_outcome NOT NULL,
    source         siwa.notification_source NOT NULL,
    verified_kid   text COLLATE "C" NOT NULL,
    jws            text COLLATE "C"
) PARTITION BY RANGE (issued_at);
-- Finds a person's notifications, to erase their tokens and to show which notification set a register.
CREATE INDEX notifications_sub ON siwa.notifications (sub);
COMMENT ON TABLE siwa.notifications IS
    'Every verified notification, once per jti. Append-only, with one partition per month (UTC) of issued_at.';
COMMENT ON COLUMN siwa.notifications.issued_at IS 'The token''s iat.';
COMMENT ON COLUMN siwa.notifications.recorded_at IS 'When the transaction that recorded it began, by the database''s clock.';
COMMENT ON COLUMN siwa.notifications.event_type IS
    'In Apple''s spelling. A deletion is account-deleted, or account-delete in older traffic.';
COMMENT ON COLUMN siwa.notifications.outcome IS
    'applied: it changed a state, an address or sessions. superseded: a newer fact was already known. unchanged: the state was
already the one that it reports.';
COMMENT ON COLUMN siwa.notifications.verified_kid IS
    'The key that verified the token. It is recorded because Apple rotates its keys.';
COMMENT ON COLUMN siwa.notifications.jws IS 'The compact JWS as received; null after it was erased.';

CREATE FUNCTION siwa.calling_role() RETURNS text
    LANGUAGE sql STABLE
    RETURN CASE current_setting('role') WHEN 'none' THEN session_user ELSE current_setting('role') END;
COMMENT ON FUNCTION siwa.calling_role IS
    'Returns the role that a session acts as: the role of SET ROLE if there is one, otherwise the role that logged in. Inside a
SECURITY DEFINER function current_user is the owner, and session_user ignores SET ROLE.';

CREATE FUNCTION siwa.ensure_notification_partitions(from_time timestamptz, to_time timestamptz) RETURNS integer
    LANGUAGE plpgsql
    -- The daemon's role may not create tables, so this function runs with the owner's rights.
    SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
    -- The bounds of a month are formatted as text. Other date styles may print time zones that cannot be parsed.
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
    -- Every role may execute this function, so it checks that the role may write notifications.
    IF NOT has_table_privilege(siwa.calling_role(), 'siwa.notifications', 'INSERT') THEN
        RAISE EXCEPTION 'role % may not write notifications', quote_ident(siwa.calling_role())
            USING ERRCODE = 'insufficient_privilege', HINT = 'Grant it INSERT on siwa.notifications.';
    END IF;
    IF from_time IS NULL OR to_time IS NULL OR last_month > month_start + interval '20 years' THEN
        RAISE EXCEPTION 'from_time and to_time span at most twenty years' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    WHILE month_start <= last_month LOOP
        partition := format('notifications_y%sm%s', to_char(month_start, 'YYYY'), to_char(month_start, 'MM'));
        is_locked := false;
        LOOP
            -- Null if no table has the name. Only an attached table receives the notifications of a month. This is a query
            -- because to_regclass may return a cached result from before the lock.
            is_attached := (
                SELECT i.inhrelid IS NOT NULL
                FROM pg_class AS c
                LEFT JOIN pg_inherits AS i
                    ON i.inhrelid = c.oid AND i.inhparent = 'siwa.notifications'::regclass AND NOT i.inhdetachpending
                WHERE c.relname = partition AND c.relnamespace = 'siwa'::regnamespace
            );
            EXIT WHEN is_attached OR is_locked;
            -- Two daemons may find the same month missing at the same time.
            PERFORM pg_advisory_xact_lock(hashtext('siwa.notifications'), hashtext(partition));
            is_locked := true;
        END LOOP;
        IF NOT is_attached THEN
            -- Attaching the table here would restore data that an operator may have detached on purpose.
            RAISE EXCEPTION 'siwa.% exists but is not attached to siwa.notifications', quote_ident(partition)
                USING ERRCODE = 'object_not_in_prerequisite_state',
                    -- Renaming it is not enough: its indexes keep the names that the table of the month needs.
                    HINT = format(
                        'Attach it again, ALTER TABLE siwa.notifications ATTACH PARTITION siwa.%1$I FOR VALUES FROM (%2$L) TO '
                            || '(%3$L), or move it away, ALTER TABLE siwa.%1$I SET SCHEMA to another one.',
                        partition,
                        month_start AT TIME ZONE 'UTC',
                        (month_start + interval '1 month') AT TIME ZONE 'UTC');
        ELSIF is_attached IS NULL THEN
            EXECUTE format('CREATE TABLE siwa.%I (LIKE siwa.notifications INCLUDING ALL)', partition);
            -- jti is unique per month: PostgreSQL has no unique index across partitions that leaves out issued_at.
            EXECUTE format('ALTER TABLE siwa.%I ADD CONSTRAINT %I UNIQUE (jti)', partition, partition || '_jti_is_unique');
            -- Without a replica identity, every UPDATE fails when a publication covers the table, and so does erasure.
            EXECUTE format('ALTER TABLE siwa.%I REPLICA IDENTITY USING INDEX %I', partition, partition || '_jti_is_unique');
            EXECUTE format('CREATE INDEX %I ON siwa.%I (received_at)', partition || '_received_at', partition);
            -- Attaching a complete table does not wait for writers to other months, and does not block them.
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
    'Creates the missing monthly partitions of siwa.notifications between two times, and returns how many it created. Raises
object_not_in_prerequisite_state if the table of a month was detached and kept its name.';

SELECT siwa.ensure_notification_partitions(now() - interval '1 month', now() + interval '2 months');

CREATE FUNCTION siwa.drop_notification_partition(older_than timestamptz) RETURNS text
    LANGUAGE plpgsql
    -- The daemon's role may not drop tables, so this function runs with the owner's rights.
    SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
    -- Detaching waits for all readers and writers of notifications, and later statements queue behind it.
    SET lock_timeout = '200ms'
AS $$
DECLARE
    partition text;
BEGIN
    -- Every role may execute this function, so it checks that the role may delete notifications.
    IF NOT has_table_privilege(siwa.calling_role(), 'siwa.notifications', 'DELETE') THEN
        RAISE EXCEPTION 'role % may not delete notifications', quote_ident(siwa.calling_role())
            USING ERRCODE = 'insufficient_privilege', HINT = 'Grant it DELETE on siwa.notifications.';
    END IF;
    IF older_than IS NULL OR older_than > now() - interval '1 day' THEN
        RAISE EXCEPTION 'older_than is less than a day ago' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    SELECT c.relname INTO partition
    FROM pg_inherits AS i
    JOIN pg_class AS c ON c.oid = i.inhrelid
    -- The pattern has no backslash, because the caller may have turned standard_conforming_strings off.
    CROSS JOIN LATERAL regexp_match(c.relname, '^notifications_y([0-9]{4,})m([0-9][0-9])$') AS m (parts)
    CROSS JOIN LATERAL make_timestamp(m.parts[1]::integer, m.parts[2]::integer, 1, 0, 0, 0) AS s (month_start)
    WHERE i.inhparent = 'siwa.notifications'::regclass
        AND s.month_start + interval '1 month' <= older_than AT TIME ZONE 'UTC'
    ORDER BY s.month_start
    LIMIT 1;
    IF partition IS NOT NULL THEN
        -- Both in one transaction, so that no detached table remains. PostgreSQL removes its files after the commit.
        EXECUTE format('ALTER TABLE siwa.notifications DETACH PARTITION siwa.%I', partition);
        EXECUTE format('DROP TABLE siwa.%I', partition);
    END IF;
    RETURN partition;
END
$$;
COMMENT ON FUNCTION siwa.drop_notification_partition IS
    'Drops the oldest monthly partition of siwa.notifications that ends at or before a time. Returns its name, or null if there
is none. Raises lock_not_available if readers or writers hold a lock for longer than 200 ms.';

CREATE FUNCTION siwa.refuse_stale_snapshot() RETURNS boolean
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RAISE EXCEPTION 'a row changed after the snapshot of this statement was taken'
        USING ERRCODE = 'serialization_failure', HINT = 'Run the statement again.';
END
$$;
COMMENT ON FUNCTION siwa.refuse_stale_snapshot IS
    'Fails the ingest statement if another writer changed a row that it had read, so that the history records real changes
only.';

CREATE TABLE siwa.account_changes (
    change_id      bigint GENERATED ALWAYS AS IDENTITY,
    account_id     bigint NOT NULL,
    app_id         text COLLATE "C" NOT NULL,
    facet          text NOT NULL,
    from_state     text NOT NULL,
    to_state       text NOT NULL,
    event_time     timestamptz NOT NULL,
    recorded_at    timestamptz NOT NULL DEFAULT now(),
    jti            text COLLATE "C",
    sessions_ended integer NOT NULL DEFAULT 0,
    CONSTRAINT account_changes_pkey PRIMARY KEY (change_id),
    CONSTRAINT account_changes_are_changes CHECK (
        (facet || ' ' || from_state || ' ' || to_state)::siwa.state_change IS NOT NULL
        AND CASE WHEN from_state = to_state THEN sessions_ended > 0 ELSE sessions_ended >= 0 END
    )
);
-- There is no foreign key to accounts: every writer has just read the account, no account is ever deleted, and the check would
-- cost more than the insertion.
CREATE INDEX account_changes_account ON siwa.account_changes (account_id, change_id);
COMMENT ON TABLE siwa.account_changes IS
    'One row per change of state, inserted in the transaction of the change. Read siwa.account_history instead.';
COMMENT ON COLUMN siwa.account_changes.app_id IS 'The app group of the notification or sign-in that caused the change.';
COMMENT ON COLUMN siwa.account_changes.jti IS 'The notification that caused the change; null if a sign-in caused it.';
COMMENT ON COLUMN siwa.account_changes.sessions_ended IS
    'How many live sessions the change ended. A late revocation may end old sessions although a newer sign-in keeps the
consent.';

CREATE VIEW siwa.account_history AS
SELECT
    a.team_id,
    a.sub,
    h.app_id,
    h.facet,
    h.from_state,
    h.to_state,
    h.event_time,
    h.recorded_at,
    h.jti,
    h.sessions_ended,
    h.account_id,
    h.change_id
FROM siwa.account_changes AS h
JOIN siwa.accounts AS a USING (account_id);
COMMENT ON VIEW siwa.account_history IS
    'One row per change of state. facet: consent, account or email. For each facet of a person, and for each consent, change_id
is in commit order. Across people a smaller change_id may be committed later, so do not use change_id as a cursor.';

CREATE TABLE siwa.signing_keys (
    url        text COLLATE "C" NOT NULL,
    kid        text COLLATE "C" NOT NULL,
    jwk        jsonb NOT NULL,
    first_seen timestamptz NOT NULL DEFAULT now(),
    last_seen  timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT signing_keys_pkey PRIMARY KEY (url, kid),
    CONSTRAINT signing_keys_url_is_not_empty CHECK (url <> ''),
    CONSTRAINT signing_keys_kid_is_the_keys CHECK (jwk ->> 'kid' = kid)
);
COMMENT ON TABLE siwa.signing_keys IS
    'Every key seen in a key set. The daemon uses them if it starts while Apple cannot be reached, and to verify dead letters
that were kept unverified. It trusts only keys of its SIWAD_KEYS_URL that were seen within SIWAD_KEYS_MAXIMUM_AGE.';
COMMENT ON COLUMN siwa.signing_keys.url IS 'The URL that the key set was fetched from.';
COMMENT ON COLUMN siwa.signing_keys.last_seen IS 'When a fetched key set last held the key.';
