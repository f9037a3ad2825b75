-- Roles: the daemon gets what it does and nothing else, and who only looks can change nothing.
--
-- Promise: neither can create, alter, drop or truncate anything, change what was recorded of a notification, a change of
-- state or an operator's action, or grant its rights to others.

CREATE FUNCTION siwa.grant_roles() RETURNS text[]
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    wanted  text[] := ARRAY['siwad_daemon', 'siwad_reader'];
    role    text;
    granted text[] := '{}';
BEGIN
    FOREACH role IN ARRAY wanted LOOP
        -- Roles belong to the whole cluster: another database may have made them, and this one may not be allowed to.
        IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = role) THEN
            BEGIN
                EXECUTE format('CREATE ROLE %I NOLOGIN', role);
            EXCEPTION
                WHEN insufficient_privilege OR duplicate_object OR unique_violation THEN NULL;
            END;
        END IF;
        CONTINUE WHEN NOT EXISTS (SELECT FROM pg_roles WHERE rolname = role);
        EXECUTE format('GRANT USAGE ON SCHEMA siwa TO %I', role);
        EXECUTE format('GRANT SELECT ON ALL TABLES IN SCHEMA siwa TO %I', role);
        granted := granted || role;
    END LOOP;
    IF 'siwad_daemon' = ANY (granted) THEN
        GRANT INSERT, UPDATE ON siwa.accounts, siwa.consents, siwa.account_sessions TO siwad_daemon;
        GRANT INSERT, UPDATE ON siwa.signing_keys, siwa.maintenance TO siwad_daemon;
        GRANT INSERT, UPDATE, DELETE ON siwa.clients, siwa.dead_letters TO siwad_daemon;
        GRANT INSERT ON siwa.account_changes, siwa.dead_letter_attempts, siwa.operator_actions TO siwad_daemon;
        -- DELETE lets siwa.drop_notification_partition go by the retention; the token is all that an erasure takes.
        GRANT INSERT, DELETE, UPDATE (jws) ON siwa.notifications TO siwad_daemon;
    END IF;
    RETURN granted;
END
$$;
COMMENT ON FUNCTION siwa.grant_roles IS
    'Makes the roles siwad_daemon and siwad_reader where that is allowed, and grants them their rights in this schema as far as
they exist; returns those. For the owner of the schema; harmless to repeat.';
REVOKE EXECUTE ON FUNCTION siwa.grant_roles FROM PUBLIC;

CREATE OR REPLACE FUNCTION siwa.ensure_notification_partitions(from_time timestamptz, to_time timestamptz) RETURNS integer
    LANGUAGE plpgsql
    -- The daemon's role has no right to create tables: this one thing is done with the owner's.
    SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    month_start timestamp := date_trunc('month', from_time AT TIME ZONE 'UTC');
    last_month  timestamp := date_trunc('month', to_time AT TIME ZONE 'UTC');
    partition   text;
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
        IF to_regclass(format('siwa.%I', partition)) IS NULL THEN
            -- Two daemons may find the same month missing.
            PERFORM pg_advisory_xact_lock(hashtext('siwa.notifications'), hashtext(partition));
            -- By a query, not to_regclass: that may still remember, from before the lock, that there was none.
            PERFORM FROM pg_class AS c WHERE c.relname = partition AND c.relnamespace = 'siwa'::regnamespace;
            IF NOT FOUND THEN
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
        END IF;
        month_start := month_start + interval '1 month';
    END LOOP;
    RETURN created;
END
$$;

-- A table that a later migration makes has no rights yet: such a migration replaces siwa.grant_roles and calls it again.
SELECT siwa.grant_roles();
