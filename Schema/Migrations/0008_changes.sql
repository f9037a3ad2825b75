-- The change feed: a gapless log of the committed changes, and the functions that publish them.
--
-- A change gets its position after its commit, in a short transaction of its own: the ingest statement only stores the id of its
-- transaction. A round publishes the difference of two snapshots: the changes that its own snapshot sees and that of the round
-- before did not. It waits for no transaction, so no open transaction holds up the changes of others.

-- Without a default, which adds the columns without writing the rows. Changes from before this migration have no transaction id:
-- they are history, and are not in the log.
ALTER TABLE siwa.account_changes ADD COLUMN xid xid8, ADD COLUMN session_id text COLLATE "C";
ALTER TABLE siwa.account_changes ALTER COLUMN xid SET DEFAULT pg_current_xact_id();
-- NOT VALID because a scan of a large history would make writers wait. The changes of before name no session.
ALTER TABLE siwa.account_changes
    ADD CONSTRAINT account_changes_name_the_session CHECK ((facet = 'session') = (session_id IS NOT NULL)) NOT VALID;
CREATE INDEX account_changes_xid ON siwa.account_changes (xid) WHERE xid IS NOT NULL;
COMMENT ON COLUMN siwa.account_changes.xid IS
    'The transaction that inserted the change, by which publication finds it. Null for changes from before the log, and from before
siwa.rebase_publication.';
COMMENT ON COLUMN siwa.account_changes.session_id IS 'The session that an operator ended; null for the other facets.';
COMMENT ON COLUMN siwa.account_changes.jti IS
    'The notification that caused the change; null if a sign-in or an operator caused it.';

ALTER DOMAIN siwa.state_change DROP CONSTRAINT state_change_is_possible;
ALTER DOMAIN siwa.state_change ADD CONSTRAINT state_change_is_possible CHECK (
    VALUE IN (
        'consent unknown authorized', 'consent unknown revoked',
        'consent authorized authorized', 'consent authorized revoked',
        'consent revoked authorized', 'consent revoked revoked',
        'account active deleted',
        'email deliverable undeliverable', 'email undeliverable deliverable',
        'session live ended'
    )
);

CREATE OR REPLACE VIEW siwa.account_history AS
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
    h.change_id,
    h.session_id
FROM siwa.account_changes AS h
JOIN siwa.accounts AS a USING (account_id);
COMMENT ON VIEW siwa.account_history IS
    'One row per change of state. facet: consent, account, email or session (ended by an operator). For each facet of a person,
and for each consent, change_id is in commit order. Across people a smaller change_id may be committed later, so do not use
change_id as a cursor: siwa.changes has positions for that.';
COMMENT ON COLUMN siwa.account_history.session_id IS 'The session that an operator ended; null for the other facets.';

CREATE OR REPLACE FUNCTION siwa.end_session(session_id text, reason text DEFAULT 'signed-out') RETURNS boolean
    LANGUAGE plpgsql
    SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    was_live boolean;
    closed   siwa.account_sessions;
BEGIN
    PERFORM siwa.check_session_end_reason(reason);
    was_live := siwa.session_is_live(end_session.session_id);
    -- Closes a session that a revocation has ended too: a later revocation moves that end, but not past this time.
    UPDATE siwa.account_sessions AS s
    SET closed_at = greatest(now(), s.created_at), close_reason = reason
    WHERE s.session_id = end_session.session_id
        AND s.closed_at IS NULL
        AND (s.expires_at IS NULL OR s.expires_at > now())
    RETURNING s.* INTO closed;
    IF NOT (FOUND AND was_live) THEN
        RETURN false;
    END IF;
    -- The application knows of the sign-outs that it reports itself.
    IF reason = 'operator' THEN
        INSERT INTO siwa.account_changes (
            account_id, app_id, facet, from_state, to_state, event_time, sessions_ended, session_id
        )
        VALUES (
            closed.account_id, closed.app_id, 'session', 'live', 'ended', closed.closed_at, 1, closed.session_id
        );
    END IF;
    RETURN true;
END
$$;
COMMENT ON FUNCTION siwa.end_session IS
    'Ends a live session for the reason signed-out or operator. Returns whether it did: false for an unknown or ended session.
An end by an operator is a change: it is in siwa.account_history and siwa.changes.';

CREATE TABLE siwa.change_log (
    position     bigint NOT NULL,
    change_id    bigint NOT NULL,
    published_at timestamptz NOT NULL,
    CONSTRAINT change_log_pkey PRIMARY KEY (position),
    CONSTRAINT change_log_change_is_published_once UNIQUE (change_id)
);
-- There is no foreign key to siwa.account_changes, from which nothing is deleted: the check would double the cost of publication.
COMMENT ON TABLE siwa.change_log IS
    'The position of each published change. Append-only, and without gaps. Read siwa.changes instead.';
COMMENT ON COLUMN siwa.change_log.position IS
    'Counts from 1. Positions become visible in their order: a reader that sees one sees all smaller ones.';
COMMENT ON COLUMN siwa.change_log.published_at IS 'By the database''s clock; never less than that of a smaller position.';

CREATE TABLE siwa.publication (
    is_only           boolean NOT NULL DEFAULT true,
    position          bigint NOT NULL,
    snapshot          pg_snapshot NOT NULL,
    published_by      xid8 NOT NULL,
    published_at      timestamptz NOT NULL,
    system_identifier bigint NOT NULL,
    CONSTRAINT publication_pkey PRIMARY KEY (is_only),
    CONSTRAINT publication_has_one_row CHECK (is_only),
    CONSTRAINT publication_position_is_a_count CHECK (position >= 0)
) WITH (fillfactor = 20);
COMMENT ON TABLE siwa.publication IS 'The state of publication: one row, which the publisher of a round locks.';
COMMENT ON COLUMN siwa.publication.position IS 'The last position of the log; 0 if it is empty.';
COMMENT ON COLUMN siwa.publication.snapshot IS 'Changes that this snapshot sees are published, unless published_by made them.';
COMMENT ON COLUMN siwa.publication.published_by IS 'The transaction of the last round. Its own changes are for the next one.';
COMMENT ON COLUMN siwa.publication.system_identifier IS
    'The cluster whose transaction ids the snapshot refers to. A dump that is restored into another one needs
siwa.rebase_publication.';

CREATE FUNCTION siwa.publish_changes(OUT first bigint, OUT last bigint)
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
    -- A round takes less than a millisecond, of which compilation would take hundreds, and scans of the whole history as long.
    SET jit = off
    SET enable_seqscan = off
    SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    head siwa.publication;
BEGIN
    SELECT * INTO STRICT head FROM siwa.publication;
    IF pg_snapshot_xmax(head.snapshot) > pg_snapshot_xmax(pg_current_snapshot()) THEN
        PERFORM siwa.refuse_foreign_publication();
    END IF;
    -- Usually nothing has changed. This finds out without a lock, and writes nothing.
    PERFORM FROM siwa.account_changes AS c WHERE c.xid >= pg_snapshot_xmax(head.snapshot) LIMIT 1;
    IF NOT FOUND THEN
        PERFORM FROM siwa.account_changes AS c
        WHERE c.xid = ANY (head.published_by || ARRAY(SELECT pg_snapshot_xip(head.snapshot)))
        LIMIT 1;
        IF NOT FOUND THEN
            RETURN;
        END IF;
    END IF;
    -- A statement of its own, so that the next one has a snapshot from after the lock: the positions of the round before are
    -- visible when these exist. Another publisher that has the lock publishes what waits.
    SELECT * INTO head FROM siwa.publication FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    IF head.system_identifier <> (SELECT c.system_identifier FROM pg_control_system() AS c) THEN
        PERFORM siwa.refuse_foreign_publication();
    END IF;
    WITH fresh AS MATERIALIZED (
        SELECT c.change_id
        FROM siwa.account_changes AS c
        WHERE c.xid >= pg_snapshot_xmax(head.snapshot) AND c.xid <> pg_current_xact_id()
        UNION ALL
        -- Transactions that the snapshot before saw in progress, and the one that took it.
        SELECT c.change_id
        FROM siwa.account_changes AS c
        WHERE c.xid = ANY (head.published_by || ARRAY(SELECT pg_snapshot_xip(head.snapshot)))
            AND c.xid < pg_snapshot_xmax(head.snapshot)
            AND c.xid <> pg_current_xact_id()
            -- Not a NOT EXISTS, which PostgreSQL may plan as a join that reads the whole log.
            AND (SELECT l.position FROM siwa.change_log AS l WHERE l.change_id = c.change_id) IS NULL
    ),
    logged AS (
        INSERT INTO siwa.change_log (position, change_id, published_at)
        SELECT
            head.position + row_number() OVER (ORDER BY f.change_id), f.change_id,
            greatest(head.published_at, statement_timestamp())
        FROM fresh AS f
    )
    UPDATE siwa.publication AS p
    SET position = head.position + (SELECT count(*) FROM fresh),
        snapshot = pg_current_snapshot(),
        published_by = pg_current_xact_id(),
        published_at = greatest(head.published_at, statement_timestamp())
    RETURNING p.position INTO last;
    IF last > head.position THEN
        first := head.position + 1;
        PERFORM pg_notify('siwa_changes', format('{"v":1,"first":%s,"last":%s}', first, last));
    ELSE
        last := NULL;
    END IF;
END
$$;
COMMENT ON FUNCTION siwa.publish_changes IS
    'Publishes the committed changes that are not in the log, unless its own transaction made them, and notifies the channel
siwa_changes. Returns the first and last position; nulls if there was nothing to publish or another session publishes. Raises
object_not_in_prerequisite_state if the database was restored from a dump: see siwa.rebase_publication. For siwad_daemon.';

CREATE FUNCTION siwa.refuse_foreign_publication() RETURNS void
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RAISE EXCEPTION 'the transaction ids of siwa.publication are those of another cluster'
        USING ERRCODE = 'object_not_in_prerequisite_state',
            HINT = 'The database was restored from a dump: SELECT siwa.rebase_publication(), which a daemon does by itself.';
END
$$;
COMMENT ON FUNCTION siwa.refuse_foreign_publication IS 'Fails a publication whose snapshot belongs to another cluster.';

CREATE FUNCTION siwa.rebase_publication(OUT first bigint, OUT last bigint)
    LANGUAGE plpgsql
    -- The daemon's role may not alter tables, so this function runs with the owner's rights.
    SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
    SET lock_timeout = '5s'
AS $$
DECLARE
    head       siwa.publication;
    identifier bigint := (SELECT c.system_identifier FROM pg_control_system() AS c);
BEGIN
    -- In another isolation level, the snapshot would be older than the lock.
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'siwa.rebase_publication needs a read-committed transaction'
            USING ERRCODE = 'active_sql_transaction';
    END IF;
    LOCK TABLE siwa.account_changes, siwa.change_log, siwa.publication IN ACCESS EXCLUSIVE MODE;
    SELECT * INTO STRICT head FROM siwa.publication;
    IF head.system_identifier = identifier
        AND pg_snapshot_xmax(head.snapshot) <= pg_snapshot_xmax(pg_current_snapshot())
    THEN
        RAISE EXCEPTION 'siwa.publication belongs to this cluster already'
            USING ERRCODE = 'object_not_in_prerequisite_state', HINT = 'Nothing has to be done.';
    END IF;
    INSERT INTO siwa.change_log (position, change_id, published_at)
    SELECT
        head.position + row_number() OVER (ORDER BY c.change_id), c.change_id,
        greatest(head.published_at, statement_timestamp())
    FROM siwa.account_changes AS c
    WHERE c.xid IS NOT NULL AND NOT EXISTS (SELECT FROM siwa.change_log AS l WHERE l.change_id = c.change_id);
    GET DIAGNOSTICS last = ROW_COUNT;
    IF last > 0 THEN
        first := head.position + 1;
        last := head.position + last;
        PERFORM pg_notify('siwa_changes', format('{"v":1,"first":%s,"last":%s}', first, last));
    ELSE
        last := NULL;
    END IF;
    -- Forgets the ids of all rows without writing the rows.
    ALTER TABLE siwa.account_changes DROP COLUMN xid;
    ALTER TABLE siwa.account_changes ADD COLUMN xid xid8;
    ALTER TABLE siwa.account_changes ALTER COLUMN xid SET DEFAULT pg_current_xact_id();
    CREATE INDEX account_changes_xid ON siwa.account_changes (xid) WHERE xid IS NOT NULL;
    COMMENT ON COLUMN siwa.account_changes.xid IS
        'The transaction that inserted the change, by which publication finds it. Null for changes from before the log, and from before
siwa.rebase_publication.';
    UPDATE siwa.publication AS p
    SET position = coalesce(last, head.position),
        snapshot = pg_current_snapshot(),
        published_by = pg_current_xact_id(),
        published_at = greatest(head.published_at, statement_timestamp()),
        system_identifier = identifier;
END
$$;
COMMENT ON FUNCTION siwa.rebase_publication IS
    'Continues the log after the transaction ids began again: in a database restored from a dump, publishes what is not in the
log, and forgets the old ids. Returns the first and last position, or nulls. Blocks writers for as long as it takes to index an
empty column. Raises object_not_in_prerequisite_state if the ids belong to this cluster. For siwad_daemon.';

CREATE FUNCTION siwa.publication_age() RETURNS interval
    LANGUAGE plpgsql STABLE
    SET search_path = pg_catalog, pg_temp
    SET jit = off
    SET enable_seqscan = off
    SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    head siwa.publication;
BEGIN
    SELECT * INTO STRICT head FROM siwa.publication;
    RETURN (
        SELECT now() - min(c.recorded_at)
        FROM (
            SELECT c.recorded_at
            FROM siwa.account_changes AS c
            WHERE c.xid >= pg_snapshot_xmax(head.snapshot)
            UNION ALL
            SELECT c.recorded_at
            FROM siwa.account_changes AS c
            WHERE c.xid = ANY (head.published_by || ARRAY(SELECT pg_snapshot_xip(head.snapshot)))
                AND c.xid < pg_snapshot_xmax(head.snapshot)
        ) AS c
    );
END
$$;
COMMENT ON FUNCTION siwa.publication_age IS
    'Returns how long ago the oldest committed change that waits for its publication was recorded; null if none waits.';

CREATE VIEW siwa.changes AS
SELECT
    l.position,
    l.published_at,
    CASE
        WHEN c.facet = 'session' OR c.from_state = c.to_state THEN 'siwa.sessions.ended'
        WHEN c.facet = 'account' THEN 'siwa.account.deleted'
        WHEN c.facet = 'consent' THEN 'siwa.consent.' || c.to_state
        WHEN c.to_state = 'undeliverable' THEN 'siwa.email.forwarding_disabled'
        ELSE 'siwa.email.forwarding_enabled'
    END AS type,
    CASE WHEN c.facet IN ('consent', 'session') THEN 'app' ELSE 'team' END AS scope,
    a.team_id,
    a.sub,
    c.app_id,
    c.facet,
    c.from_state,
    c.to_state,
    c.event_time,
    c.recorded_at,
    c.jti,
    c.sessions_ended,
    c.session_id,
    c.account_id,
    l.change_id
FROM siwa.change_log AS l
JOIN siwa.account_changes AS c USING (change_id)
JOIN siwa.accounts AS a USING (account_id);
COMMENT ON VIEW siwa.changes IS
    'The published changes, each with its position: read them WHERE position > the last one that you handled ORDER BY position.
For each facet of a person, and for each consent, positions are in commit order.';
COMMENT ON COLUMN siwa.changes.position IS
    'Counts from 1 without gaps, and never changes. If you see one, you have seen all smaller ones.';
COMMENT ON COLUMN siwa.changes.type IS
    'siwa.consent.revoked, siwa.consent.authorized, siwa.sessions.ended, siwa.account.deleted, siwa.email.forwarding_disabled or
siwa.email.forwarding_enabled.';
COMMENT ON COLUMN siwa.changes.scope IS 'app: it concerns the person in app_id. team: in all apps of the team.';
COMMENT ON COLUMN siwa.changes.app_id IS 'The app group of the notification, sign-in or session that caused the change.';
COMMENT ON COLUMN siwa.changes.jti IS 'Apple''s notification; null if a sign-in or an operator caused the change.';
COMMENT ON COLUMN siwa.changes.session_id IS 'The session that an operator ended; null for the other facets.';

CREATE FUNCTION siwa.position_at(moment timestamptz) RETURNS bigint
    LANGUAGE plpgsql STABLE
    SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    -- The position is at least the first, and less than the second one. Position 0 is before every time.
    low    bigint := 0;
    high   bigint := (SELECT p.position + 1 FROM siwa.publication AS p);
    middle bigint;
BEGIN
    WHILE high - low > 1 LOOP
        middle := (low + high) / 2;
        IF (SELECT l.published_at < moment FROM siwa.change_log AS l WHERE l.position = middle) THEN
            low := middle;
        ELSE
            high := middle;
        END IF;
    END LOOP;
    RETURN low;
END
$$;
COMMENT ON FUNCTION siwa.position_at IS
    'Returns the last position of siwa.changes that was published before a time; 0 if none was.';

INSERT INTO siwa.publication (position, snapshot, published_by, published_at, system_identifier)
SELECT 0, pg_current_snapshot(), pg_current_xact_id(), now(), c.system_identifier FROM pg_control_system() AS c;

CREATE OR REPLACE FUNCTION siwa.grant_roles() RETURNS text[]
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
        siwa.keep_earlier_attempt, siwa.grant_roles,
        siwa.publish_changes, siwa.rebase_publication, siwa.publication_age, siwa.position_at
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
        GRANT INSERT ON siwa.account_changes, siwa.change_log TO siwad_daemon;
        GRANT UPDATE ON siwa.publication TO siwad_daemon;
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
            siwa.account_states, siwa.account_history, siwa.changes, siwa.sessions, siwa.live_sessions,
            siwa.undeliverable_addresses
            TO siwad_application;
        GRANT EXECUTE ON FUNCTION
            siwa.record_sign_in, siwa.open_session, siwa.rotate_session, siwa.extend_session, siwa.end_session,
            siwa.end_sessions, siwa.sessions_of, siwa.session_is_live, siwa.position_at
            TO siwad_application;
    END IF;
    IF 'siwad_reader' = ANY (granted) THEN
        GRANT EXECUTE ON FUNCTION siwa.publication_age, siwa.position_at TO siwad_reader;
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

SELECT siwa.grant_roles();
