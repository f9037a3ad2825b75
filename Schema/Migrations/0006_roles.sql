-- Roles, each with the rights that its work needs.
--
-- No role can create, alter, drop or truncate a table, change the record of a notification, of a change of state or of an
-- operator's action, or grant its rights to others. Any role with DML rights on the tables can run the daemon too: PUBLIC may
-- execute the functions that derive states or that check the rights of the caller, but no function for applications.

CREATE FUNCTION siwa.grant_roles() RETURNS text[]
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    -- siwad_reader may not read these columns: a token is a kind of credential, and identifies a person.
    secrets constant text[] := ARRAY['notifications.jws', 'dead_letters.body'];
    wanted  constant text[] := ARRAY['siwad_daemon', 'siwad_reader', 'siwad_application'];
    role    text;
    granted text[] := '{}';
    target  record;
BEGIN
    REVOKE ALL ON FUNCTION
        siwa.app_group, siwa.check_identifier, siwa.check_time, siwa.session_expiry, siwa.check_session_end_reason,
        siwa.record_sign_in, siwa.open_session, siwa.rotate_session, siwa.extend_session, siwa.end_session,
        siwa.end_sessions, siwa.sessions_of, siwa.session_is_live,
        siwa.keep_earlier_attempt, siwa.grant_roles
        FROM PUBLIC;
    FOREACH role IN ARRAY wanted LOOP
        -- Roles belong to the cluster. Another database may have created them, and the current role may lack the right to.
        IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = role) THEN
            BEGIN
                EXECUTE format('CREATE ROLE %I NOLOGIN', role);
            EXCEPTION
                WHEN insufficient_privilege OR duplicate_object OR unique_violation THEN NULL;
            END;
        END IF;
        CONTINUE WHEN NOT EXISTS (SELECT FROM pg_roles WHERE rolname = role);
        EXECUTE format('REVOKE ALL ON ALL TABLES IN SCHEMA siwa FROM %I', role);
        EXECUTE format('REVOKE ALL ON ALL FUNCTIONS IN SCHEMA siwa FROM %I', role);
        EXECUTE format('GRANT USAGE ON SCHEMA siwa TO %I', role);
        -- PostgreSQL checks the right to execute the functions inside a view against the role that reads the view.
        EXECUTE format(
            'GRANT EXECUTE ON FUNCTION siwa.consent_state, siwa.email_state TO %I', role);
        granted := granted || role;
    END LOOP;

    IF 'siwad_daemon' = ANY (granted) THEN
        GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA siwa TO siwad_daemon;
        REVOKE EXECUTE ON FUNCTION siwa.grant_roles, siwa.keep_earlier_attempt FROM siwad_daemon;
        GRANT INSERT, UPDATE ON siwa.accounts, siwa.consents, siwa.signing_keys, siwa.maintenance TO siwad_daemon;
        GRANT INSERT, UPDATE, DELETE ON siwa.account_sessions, siwa.clients TO siwad_daemon;
        GRANT INSERT ON siwa.account_changes TO siwad_daemon;
        -- Triggers set which database role resolved or replayed a letter, and keep its earlier attempts.
        GRANT
            INSERT (
                received_at, last_received_at, reason, detail, body, token_digest, jti, aud, sub, event_type, verified_kid,
                verified_at
            ),
            UPDATE (
                last_received_at, deliveries, reason, detail, status, attempts, body, jti, aud, sub, event_type, verified_kid,
                verified_at, last_failed_at, last_failed_by, resolved_at, resolved_by, outcome, note
            ),
            DELETE
            ON siwa.dead_letters TO siwad_daemon;
        -- Defaults set the other columns: the time and the database role.
        GRANT INSERT (operator, action, target, note, affected) ON siwa.operator_actions TO siwad_daemon;
        -- DELETE is required by siwa.drop_notification_partition. Erasure updates only the token.
        GRANT INSERT, DELETE, UPDATE (jws) ON siwa.notifications TO siwad_daemon;
    END IF;
    IF 'siwad_application' = ANY (granted) THEN
        GRANT SELECT ON
            siwa.account_states, siwa.account_history, siwa.sessions, siwa.live_sessions, siwa.undeliverable_addresses
            TO siwad_application;
        GRANT EXECUTE ON FUNCTION
            siwa.record_sign_in, siwa.open_session, siwa.rotate_session, siwa.extend_session, siwa.end_session,
            siwa.end_sessions, siwa.sessions_of, siwa.session_is_live
            TO siwad_application;
    END IF;

    -- Granted by column, and not on partitions, which would expose the columns that their parent hides.
    FOR target IN
        SELECT
            c.relname AS name,
            string_agg(quote_ident(a.attname), ', ' ORDER BY a.attnum) AS all_columns,
            string_agg(quote_ident(a.attname), ', ' ORDER BY a.attnum)
                FILTER (WHERE c.relname || '.' || a.attname <> ALL (secrets)) AS open_columns
        FROM pg_class AS c
        JOIN pg_attribute AS a ON a.attrelid = c.oid
        WHERE c.relnamespace = 'siwa'::regnamespace
            AND c.relkind IN ('r', 'p', 'v')
            AND NOT c.relispartition
            AND a.attnum > 0
            AND NOT a.attisdropped
        GROUP BY c.relname
    LOOP
        IF 'siwad_daemon' = ANY (granted) THEN
            EXECUTE format('GRANT SELECT ON siwa.%I TO siwad_daemon', target.name);
        END IF;
        IF 'siwad_reader' = ANY (granted) AND target.open_columns = target.all_columns THEN
            EXECUTE format('GRANT SELECT ON siwa.%I TO siwad_reader', target.name);
        ELSIF 'siwad_reader' = ANY (granted) THEN
            EXECUTE format('GRANT SELECT (%s) ON siwa.%I TO siwad_reader', target.open_columns, target.name);
        END IF;
    END LOOP;
    RETURN granted;
END
$$;
COMMENT ON FUNCTION siwa.grant_roles IS
    'Creates the roles siwad_daemon, siwad_reader and siwad_application if the current role may, and grants the existing ones
exactly their rights in this schema. Returns the roles that exist. For the owner of the schema; idempotent.';

-- A later migration that adds a table or a function calls siwa.grant_roles, and replaces it first if it has to.
SELECT siwa.grant_roles();
