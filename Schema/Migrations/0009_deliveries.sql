-- Webhooks: the endpoints of applications, and one delivery for each change that an endpoint wants.
--
-- A round of publication inserts the deliveries in the statement that gives the changes their positions, so an endpoint misses
-- nothing, whatever its state. Daemons claim due deliveries with FOR UPDATE SKIP LOCKED and need no other coordination.

CREATE TABLE siwa.endpoints (
    endpoint_id   integer GENERATED ALWAYS AS IDENTITY,
    name          text COLLATE "C" NOT NULL,
    kind          text COLLATE "C" NOT NULL DEFAULT 'webhook',
    url           text COLLATE "C",
    types         text[] COLLATE "C",
    apps          text[] COLLATE "C",
    ordering      text COLLATE "C" NOT NULL DEFAULT 'attempt',
    concurrency   smallint NOT NULL DEFAULT 8,
    timeout       interval NOT NULL DEFAULT '15 s',
    rate          double precision,
    retries       interval[] NOT NULL DEFAULT '{5 s,5 min,30 min,2 h,5 h,10 h,14 h,20 h,24 h}',
    disable_after interval NOT NULL DEFAULT '120 h',
    signature     text COLLATE "C" NOT NULL DEFAULT 'hmac',
    include       text[] COLLATE "C" NOT NULL DEFAULT '{}',
    audience      text COLLATE "C",
    subject       text COLLATE "C",
    revoked_as    text COLLATE "C",
    version       smallint NOT NULL DEFAULT 1,
    status        text COLLATE "C" NOT NULL DEFAULT 'enabled',
    status_reason text COLLATE "C",
    status_at     timestamptz NOT NULL DEFAULT now(),
    created_at    timestamptz NOT NULL DEFAULT now(),
    revision      integer NOT NULL DEFAULT 1,
    CONSTRAINT endpoints_pkey PRIMARY KEY (endpoint_id),
    CONSTRAINT endpoints_name_is_unique UNIQUE (name),
    CONSTRAINT endpoints_name_is_a_label CHECK (name ~ '^[a-z0-9][a-z0-9-]{0,62}$'),
    CONSTRAINT endpoints_kind_is_known CHECK (kind IN ('webhook', 'set-push', 'set-poll')),
    CONSTRAINT endpoints_polled_have_no_url CHECK ((kind = 'set-poll') = (url IS NULL)),
    CONSTRAINT endpoints_url_is_short CHECK (octet_length(url) <= 2048),
    CONSTRAINT endpoints_webhooks_have_no_audience CHECK ((kind = 'webhook') = (audience IS NULL)),
    CONSTRAINT endpoints_types_are_known CHECK (
        types <> '{}'
        AND types <@ ARRAY[
            'siwa.consent.revoked', 'siwa.consent.authorized', 'siwa.sessions.ended', 'siwa.account.deleted',
            'siwa.email.forwarding_disabled', 'siwa.email.forwarding_enabled'
        ]
    ),
    CONSTRAINT endpoints_apps_are_named CHECK (apps <> '{}' AND array_position(apps, NULL) IS NULL),
    CONSTRAINT endpoints_ordering_is_known CHECK (ordering IN ('attempt', 'person', 'none')),
    CONSTRAINT endpoints_concurrency_is_bounded CHECK (concurrency BETWEEN 1 AND 64),
    CONSTRAINT endpoints_timeout_is_bounded CHECK (timeout BETWEEN '1 s' AND '60 s'),
    CONSTRAINT endpoints_rate_is_positive CHECK (rate > 0),
    CONSTRAINT endpoints_retries_are_delays CHECK (
        cardinality(retries) <= 50 AND array_position(retries, NULL) IS NULL AND interval '0' < ALL (retries)
    ),
    CONSTRAINT endpoints_disable_after_is_a_time CHECK (disable_after >= interval '0'),
    CONSTRAINT endpoints_signature_is_known CHECK (signature IN ('hmac', 'ed25519', 'both')),
    CONSTRAINT endpoints_include_is_known CHECK (include <@ ARRAY['email']),
    CONSTRAINT endpoints_subject_is_known CHECK (
        subject IS NULL OR subject IN ('simple', 'complex') AND kind <> 'webhook'
    ),
    CONSTRAINT endpoints_revoked_as_is_known CHECK (
        revoked_as IS NULL OR revoked_as = 'account-disabled' AND kind <> 'webhook'
    ),
    CONSTRAINT endpoints_version_is_known CHECK (version = 1),
    CONSTRAINT endpoints_status_is_known CHECK (status IN ('enabled', 'paused', 'disabled')),
    CONSTRAINT endpoints_status_has_a_reason CHECK ((status = 'enabled') = (status_reason IS NULL)),
    CONSTRAINT endpoints_status_reason_is_known CHECK (status_reason IN ('operator', 'gone', 'failing'))
);
COMMENT ON TABLE siwa.endpoints IS 'Where changes are delivered to. siwad endpoints writes it.';
COMMENT ON COLUMN siwa.endpoints.types IS
    'The types of siwa.changes that are delivered; null: all but siwa.consent.authorized.';
COMMENT ON COLUMN siwa.endpoints.apps IS
    'The app groups whose changes are delivered; null: all. A change of scope team is delivered if the team has one of them.';
COMMENT ON COLUMN siwa.endpoints.ordering IS
    'attempt: a change waits for the first attempt of the earlier ones of its person. person: for their end. none: for nothing.';
COMMENT ON COLUMN siwa.endpoints.concurrency IS 'The most requests that a daemon makes at the same time.';
COMMENT ON COLUMN siwa.endpoints.timeout IS 'For a whole request, from the connection to the end of the answer.';
COMMENT ON COLUMN siwa.endpoints.rate IS 'The most requests a second of a daemon; null: no limit.';
COMMENT ON COLUMN siwa.endpoints.retries IS 'The time before each further attempt. After the last one, the delivery is dead.';
COMMENT ON COLUMN siwa.endpoints.disable_after IS 'The endpoint is disabled after failing for this long; 0: never.';
COMMENT ON COLUMN siwa.endpoints.include IS 'Data that receivers get only if the operator wants it: email.';
COMMENT ON COLUMN siwa.endpoints.status IS
    'enabled: changes are delivered. paused (by an operator) and disabled (by siwad): they wait until it is resumed.';
COMMENT ON COLUMN siwa.endpoints.revision IS 'Counts changes of the row; a daemon that finds another one reads the row again.';

CREATE FUNCTION siwa.count_endpoint_revision() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    NEW.revision := OLD.revision + 1;
    IF (NEW.status, NEW.status_reason) IS DISTINCT FROM (OLD.status, OLD.status_reason) THEN
        NEW.status_at := clock_timestamp();
    END IF;
    RETURN NEW;
END
$$;
COMMENT ON FUNCTION siwa.count_endpoint_revision IS 'Counts the revision of an endpoint, and notes when its status changed.';

CREATE TRIGGER endpoints_count_the_revision
    BEFORE UPDATE ON siwa.endpoints
    FOR EACH ROW EXECUTE FUNCTION siwa.count_endpoint_revision();

CREATE TABLE siwa.endpoint_states (
    endpoint_id      integer NOT NULL,
    failing_since    timestamptz,
    open_until       timestamptz,
    probe_delay      interval,
    last_success_at  timestamptz,
    last_reason      text COLLATE "C",
    last_http_status smallint,
    verify_state     text COLLATE "C",
    CONSTRAINT endpoint_states_pkey PRIMARY KEY (endpoint_id),
    CONSTRAINT endpoint_states_endpoint_exists
        FOREIGN KEY (endpoint_id) REFERENCES siwa.endpoints (endpoint_id) ON DELETE CASCADE,
    CONSTRAINT endpoint_states_open_with_a_delay CHECK ((open_until IS NULL) = (probe_delay IS NULL))
) WITH (fillfactor = 50);
COMMENT ON TABLE siwa.endpoint_states IS
    'What the daemons know of an endpoint''s health: one row for each endpoint, apart from it because it changes often.';
COMMENT ON COLUMN siwa.endpoint_states.failing_since IS 'The time of the first failure since the last success; null after a success.';
COMMENT ON COLUMN siwa.endpoint_states.open_until IS
    'The circuit is open: nothing is delivered before this time, and then one change as a probe. null: it is closed.';
COMMENT ON COLUMN siwa.endpoint_states.probe_delay IS 'The present time between two probes.';
COMMENT ON COLUMN siwa.endpoint_states.last_reason IS 'Why the last failed attempt failed, as in siwa.deliveries.reason.';
COMMENT ON COLUMN siwa.endpoint_states.verify_state IS 'For receivers of security event tokens.';

CREATE TABLE siwa.endpoint_secrets (
    endpoint_id integer NOT NULL,
    purpose     text COLLATE "C" NOT NULL,
    generation  integer NOT NULL,
    sealed      bytea NOT NULL,
    key_id      text COLLATE "C",
    fingerprint text COLLATE "C" NOT NULL,
    created_at  timestamptz NOT NULL DEFAULT now(),
    expires_at  timestamptz,
    CONSTRAINT endpoint_secrets_pkey PRIMARY KEY (endpoint_id, purpose, generation),
    CONSTRAINT endpoint_secrets_endpoint_exists
        FOREIGN KEY (endpoint_id) REFERENCES siwa.endpoints (endpoint_id) ON DELETE CASCADE,
    CONSTRAINT endpoint_secrets_purpose_is_known CHECK (purpose IN ('hmac', 'ed25519', 'authorization', 'poll-token')),
    CONSTRAINT endpoint_secrets_generation_is_counted_from_one CHECK (generation > 0),
    CONSTRAINT endpoint_secrets_poll_tokens_are_digests CHECK (
        (purpose = 'poll-token') = (key_id IS NULL) AND (purpose <> 'poll-token' OR octet_length(sealed) = 32)
    ),
    CONSTRAINT endpoint_secrets_fingerprint_is_short CHECK (fingerprint ~ '^[0-9a-f]{8}$')
);
COMMENT ON TABLE siwa.endpoint_secrets IS
    'The secrets of endpoints, sealed with a key of SIWAD_SEALING_KEYS. Several generations are valid while one is replaced.';
COMMENT ON COLUMN siwa.endpoint_secrets.sealed IS
    'A compact JWE whose content also names endpoint, purpose and generation; for a poll token its SHA-256.';
COMMENT ON COLUMN siwa.endpoint_secrets.key_id IS 'The name of the key in SIWAD_SEALING_KEYS.';
COMMENT ON COLUMN siwa.endpoint_secrets.fingerprint IS 'The first four bytes of the secret''s SHA-256, to tell secrets apart.';
COMMENT ON COLUMN siwa.endpoint_secrets.expires_at IS 'When it stops being used; null for the latest generation.';

CREATE TABLE siwa.deliveries (
    endpoint_id     integer NOT NULL,
    position        bigint NOT NULL,
    account_id      bigint NOT NULL,
    status          text COLLATE "C" NOT NULL DEFAULT 'pending',
    attempts        integer NOT NULL DEFAULT 0,
    next_attempt_at timestamptz DEFAULT now(),
    claim           uuid,
    claimed_until   timestamptz,
    reason          text COLLATE "C",
    http_status     smallint,
    created_at      timestamptz NOT NULL DEFAULT now(),
    first_failed_at timestamptz,
    resolved_at     timestamptz,
    resolved_by     text,
    note            text,
    CONSTRAINT deliveries_pkey PRIMARY KEY (endpoint_id, position),
    CONSTRAINT deliveries_endpoint_exists
        FOREIGN KEY (endpoint_id) REFERENCES siwa.endpoints (endpoint_id) ON DELETE CASCADE,
    CONSTRAINT deliveries_status_is_known CHECK (status IN ('pending', 'retry', 'dead', 'discarded', 'delivered')),
    CONSTRAINT deliveries_waiting_have_a_time CHECK ((status IN ('pending', 'retry')) = (next_attempt_at IS NOT NULL)),
    CONSTRAINT deliveries_resolved_at_a_time CHECK ((status IN ('delivered', 'discarded')) = (resolved_at IS NOT NULL)),
    CONSTRAINT deliveries_discarded_by_someone CHECK ((status = 'discarded') = (resolved_by IS NOT NULL)),
    CONSTRAINT deliveries_claimed_for_a_time CHECK ((claim IS NULL) = (claimed_until IS NULL)),
    CONSTRAINT deliveries_only_waiting_are_claimed CHECK (claim IS NULL OR status IN ('pending', 'retry')),
    CONSTRAINT deliveries_failed_for_a_reason CHECK ((first_failed_at IS NULL) = (reason IS NULL)),
    CONSTRAINT deliveries_retried_after_a_failure CHECK (status NOT IN ('retry', 'dead') OR reason IS NOT NULL),
    CONSTRAINT deliveries_reason_is_known CHECK (
        reason IN (
            'redirected', 'refused', 'failed', 'timed-out', 'unreachable', 'tls', 'blocked', 'malformed-answer', 'aborted',
            'gone', 'throttled'
        )
    ),
    CONSTRAINT deliveries_attempts_are_counted CHECK (attempts >= 0)
) WITH (fillfactor = 80);
-- The changes of an endpoint that were never attempted, in their order, and those to attempt again, when they are due.
CREATE INDEX deliveries_pending ON siwa.deliveries (endpoint_id, position) WHERE status = 'pending';
CREATE INDEX deliveries_retry ON siwa.deliveries (endpoint_id, next_attempt_at) WHERE status = 'retry';
-- What is before a change of the same person.
CREATE INDEX deliveries_person ON siwa.deliveries (endpoint_id, account_id, position)
    WHERE status IN ('pending', 'retry');
CREATE INDEX deliveries_dead ON siwa.deliveries (endpoint_id, position) WHERE status = 'dead';
CREATE INDEX deliveries_resolved_at ON siwa.deliveries (resolved_at) WHERE resolved_at IS NOT NULL;
COMMENT ON TABLE siwa.deliveries IS
    'One row for each change and endpoint that wants it, until SIWAD_DELIVERY_RETENTION after its end. Operators name a delivery
by endpoint and position: shop/4711.';
COMMENT ON COLUMN siwa.deliveries.status IS
    'pending: not attempted yet, or in its first attempt. retry: attempted, and attempted again at next_attempt_at. dead: given up;
an operator retries or discards it.';
COMMENT ON COLUMN siwa.deliveries.attempts IS 'Counted at the start of an attempt, again from 1 after an operator retried.';
COMMENT ON COLUMN siwa.deliveries.claim IS
    'Identifies the attempt that is under way. The outcome of an attempt whose claim was replaced is ignored.';
COMMENT ON COLUMN siwa.deliveries.claimed_until IS 'After this time, another daemon may claim it.';
COMMENT ON COLUMN siwa.deliveries.reason IS 'Why the last failed attempt failed; null if none did.';
COMMENT ON COLUMN siwa.deliveries.http_status IS 'The status of the last answer; null if there was none.';
COMMENT ON COLUMN siwa.deliveries.resolved_by IS 'The operator who discarded it, as given to the command.';

CREATE TABLE siwa.delivery_attempts (
    attempt_id   bigint GENERATED ALWAYS AS IDENTITY,
    endpoint_id  integer NOT NULL,
    position     bigint NOT NULL,
    attempt      integer NOT NULL,
    attempted_at timestamptz NOT NULL,
    duration     interval NOT NULL,
    reason       text COLLATE "C" NOT NULL,
    http_status  smallint,
    detail       text NOT NULL,
    CONSTRAINT delivery_attempts_pkey PRIMARY KEY (attempt_id),
    CONSTRAINT delivery_attempts_delivery_exists
        FOREIGN KEY (endpoint_id, position) REFERENCES siwa.deliveries (endpoint_id, position) ON DELETE CASCADE,
    CONSTRAINT delivery_attempts_duration_is_positive CHECK (duration >= interval '0')
);
CREATE INDEX delivery_attempts_delivery ON siwa.delivery_attempts (endpoint_id, position);
COMMENT ON TABLE siwa.delivery_attempts IS 'One row for each failed attempt.';
COMMENT ON COLUMN siwa.delivery_attempts.detail IS 'The cause in siwad''s words; never a part of the receiver''s answer.';

-- Deletes settled deliveries.
ALTER TABLE siwa.maintenance
    DROP CONSTRAINT maintenance_task_is_known,
    ADD CONSTRAINT maintenance_task_is_known
        CHECK (task IN ('partitions', 'retention', 'sessions', 'erasure', 'deliveries'));

CREATE FUNCTION siwa.change_type(facet text, from_state text, to_state text) RETURNS text
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE
    WHEN facet = 'session' OR from_state = to_state THEN 'siwa.sessions.ended'
    WHEN facet = 'account' THEN 'siwa.account.deleted'
    WHEN facet = 'consent' THEN 'siwa.consent.' || to_state
    WHEN to_state = 'undeliverable' THEN 'siwa.email.forwarding_disabled'
    ELSE 'siwa.email.forwarding_enabled'
END;
COMMENT ON FUNCTION siwa.change_type IS 'The type of a change in the event catalogue.';

CREATE FUNCTION siwa.change_scope(facet text) RETURNS text
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE WHEN facet IN ('consent', 'session') THEN 'app' ELSE 'team' END;
COMMENT ON FUNCTION siwa.change_scope IS
    'app for a change that concerns one app group of a person, team for one that concerns all apps of the team.';

-- In a form that PostgreSQL expands in place: the apps of the team are read only if the filter needs them.
CREATE FUNCTION siwa.endpoint_wants(
    types text[], apps text[], type text, scope text, app_id text, team_apps text[]
) RETURNS boolean
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE WHEN types IS NULL THEN type <> 'siwa.consent.authorized' ELSE type = ANY (types) END
    AND CASE WHEN apps IS NULL THEN true WHEN scope = 'app' THEN app_id = ANY (apps) ELSE apps && team_apps END;
COMMENT ON FUNCTION siwa.endpoint_wants IS
    'Whether the filter of an endpoint (types and apps) matches a change. team_apps are the app groups of its team: a change of
scope team, such as a deletion, concerns them all, whichever app''s notification reported it.';

CREATE OR REPLACE VIEW siwa.changes AS
SELECT
    l.position,
    l.published_at,
    siwa.change_type(c.facet, c.from_state, c.to_state) AS type,
    siwa.change_scope(c.facet) AS scope,
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

-- As before, and inserts the deliveries of each change.
CREATE OR REPLACE FUNCTION siwa.publish_changes(OUT first bigint, OUT last bigint)
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
        SELECT c.change_id, c.account_id, c.app_id, c.facet, c.from_state, c.to_state
        FROM siwa.account_changes AS c
        WHERE c.xid >= pg_snapshot_xmax(head.snapshot) AND c.xid <> pg_current_xact_id()
        UNION ALL
        -- Transactions that the snapshot before saw in progress, and the one that took it.
        SELECT c.change_id, c.account_id, c.app_id, c.facet, c.from_state, c.to_state
        FROM siwa.account_changes AS c
        WHERE c.xid = ANY (head.published_by || ARRAY(SELECT pg_snapshot_xip(head.snapshot)))
            AND c.xid < pg_snapshot_xmax(head.snapshot)
            AND c.xid <> pg_current_xact_id()
            -- Not a NOT EXISTS, which PostgreSQL may plan as a join that reads the whole log.
            AND (SELECT l.position FROM siwa.change_log AS l WHERE l.change_id = c.change_id) IS NULL
    ),
    placed AS MATERIALIZED (
        SELECT
            head.position + row_number() OVER (ORDER BY f.change_id) AS position, f.change_id, f.account_id, f.app_id,
            siwa.change_type(f.facet, f.from_state, f.to_state) AS type, siwa.change_scope(f.facet) AS scope
        FROM fresh AS f
    ),
    logged AS (
        INSERT INTO siwa.change_log (position, change_id, published_at)
        SELECT p.position, p.change_id, greatest(head.published_at, statement_timestamp()) FROM placed AS p
    ),
    delivered AS (
        INSERT INTO siwa.deliveries (endpoint_id, position, account_id)
        SELECT e.endpoint_id, p.position, p.account_id
        FROM siwa.endpoints AS e, placed AS p
        WHERE siwa.endpoint_wants(e.types, e.apps, p.type, p.scope, p.app_id, ARRAY(
            SELECT k.app_id
            FROM siwa.accounts AS a JOIN siwa.clients AS k USING (team_id)
            WHERE a.account_id = p.account_id
        ))
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

CREATE OR REPLACE FUNCTION siwa.rebase_publication(OUT first bigint, OUT last bigint)
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
        INSERT INTO siwa.deliveries (endpoint_id, position, account_id)
        SELECT e.endpoint_id, c.position, c.account_id
        FROM siwa.endpoints AS e, siwa.changes AS c
        WHERE c.position > head.position
            AND siwa.endpoint_wants(e.types, e.apps, c.type, c.scope, c.app_id, ARRAY(
                SELECT k.app_id FROM siwa.clients AS k WHERE k.team_id = c.team_id
            ));
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

-- Deliveries that one daemon is to attempt. Another daemon that claims at the same time gets others.
CREATE FUNCTION siwa.claim_deliveries(of_endpoint integer, capacity integer, again integer, probe text)
    RETURNS TABLE (
        claim text, status text, attempts integer, email text, "position" bigint, published_at timestamptz, type text, scope text,
        team_id text, sub text, app_id text, facet text, from_state text, to_state text, event_time timestamptz,
        recorded_at timestamptz, jti text, sessions_ended integer, session_id text, account_id bigint, change_id bigint
    )
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
    -- As in siwa.publish_changes: a claim must not become slow because the plan is from when the table was small.
    SET jit = off
    SET enable_seqscan = off
    SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    e       siwa.endpoints;
    chosen  tid[] := '{}';
    retries tid[] := '{}';
BEGIN
    SELECT * INTO e FROM siwa.endpoints AS p WHERE p.endpoint_id = of_endpoint AND p.status = 'enabled';
    IF NOT FOUND THEN
        RETURN;
    END IF;
    -- The scalar subqueries find what a change waits for among the earlier ones of its person. They are no joins, which could be
    -- planned to read the whole table.
    IF probe = 'newest' THEN
        chosen := ARRAY(
            SELECT d.ctid FROM siwa.deliveries AS d
            WHERE d.endpoint_id = of_endpoint AND d.status = 'pending'
                AND (d.claim IS NULL OR d.claimed_until < clock_timestamp())
                AND (
                    SELECT b.position FROM siwa.deliveries AS b
                    WHERE b.endpoint_id = of_endpoint AND b.account_id = d.account_id AND b.position < d.position
                        AND b.status IN ('pending', 'retry')
                    LIMIT 1
                ) IS NULL
            ORDER BY d.position DESC LIMIT 1
            FOR UPDATE SKIP LOCKED
        );
    END IF;
    IF probe IS DISTINCT FROM 'newest' THEN
        retries := ARRAY(
            SELECT d.ctid FROM siwa.deliveries AS d
            WHERE d.endpoint_id = of_endpoint AND d.status = 'retry'
                -- A probe may come before the delivery is due.
                AND d.next_attempt_at <= CASE WHEN probe IS NULL THEN clock_timestamp() ELSE 'infinity' END
                AND (d.claim IS NULL OR d.claimed_until < clock_timestamp())
                AND CASE WHEN e.ordering = 'none' THEN true ELSE (
                    SELECT b.position FROM siwa.deliveries AS b
                    WHERE b.endpoint_id = of_endpoint AND b.account_id = d.account_id AND b.position < d.position
                        AND b.status IN ('pending', 'retry') AND (b.status = 'pending' OR e.ordering = 'person')
                    LIMIT 1
                ) IS NULL END
            ORDER BY d.next_attempt_at LIMIT least(again, capacity)
            FOR UPDATE SKIP LOCKED
        );
        chosen := retries || ARRAY(
            SELECT d.ctid FROM siwa.deliveries AS d
            WHERE d.endpoint_id = of_endpoint AND d.status = 'pending' AND d.next_attempt_at <= clock_timestamp()
                AND (d.claim IS NULL OR d.claimed_until < clock_timestamp())
                AND CASE WHEN e.ordering = 'none' THEN true ELSE (
                    SELECT b.position FROM siwa.deliveries AS b
                    WHERE b.endpoint_id = of_endpoint AND b.account_id = d.account_id AND b.position < d.position
                        AND b.status IN ('pending', 'retry') AND (b.status = 'pending' OR e.ordering = 'person')
                    LIMIT 1
                ) IS NULL END
            ORDER BY d.position LIMIT capacity - cardinality(retries)
            FOR UPDATE SKIP LOCKED
        );
    END IF;
    -- The plan may be from when the tables were empty, so it must not depend on their size: rows are updated by ctid, which their
    -- lock keeps, and each lateral subquery can only be planned as a look-up in the index of its key.
    RETURN QUERY
    WITH claimed AS (
        UPDATE siwa.deliveries AS d
        SET claim = gen_random_uuid(),
            claimed_until = clock_timestamp() + e.timeout + interval '10 s',
            attempts = d.attempts + 1
        FROM unnest(chosen) AS o (place)
        WHERE d.ctid = o.place
        RETURNING d.position, d.account_id, d.claim, d.status, d.attempts
    )
    SELECT
        k.claim::text, k.status, k.attempts, CASE WHEN 'email' = ANY (e.include) THEN a.email END, k.position, l.published_at,
        siwa.change_type(c.facet, c.from_state, c.to_state), siwa.change_scope(c.facet), a.team_id, a.sub, c.app_id, c.facet,
        c.from_state, c.to_state, c.event_time, c.recorded_at, c.jti, c.sessions_ended, c.session_id, c.account_id, l.change_id
    FROM claimed AS k
    CROSS JOIN LATERAL (
        SELECT l.change_id, l.published_at FROM siwa.change_log AS l WHERE l.position = k.position OFFSET 0
    ) AS l
    CROSS JOIN LATERAL (
        -- Both columns, because an index of account_changes begins with the account.
        SELECT c.* FROM siwa.account_changes AS c
        WHERE c.account_id = k.account_id AND c.change_id = l.change_id
        OFFSET 0
    ) AS c
    CROSS JOIN LATERAL (
        SELECT a.team_id, a.sub, a.email FROM siwa.accounts AS a WHERE a.account_id = k.account_id OFFSET 0
    ) AS a
    ORDER BY k.position;
END
$$;
COMMENT ON FUNCTION siwa.claim_deliveries IS
    'Claims due deliveries of an enabled endpoint, and returns them with their changes: at most capacity, of which at most
again failed before. probe: one of them while the circuit is open, oldest or newest.';

CREATE FUNCTION siwa.settle_deliveries(
    of_endpoint integer, positions bigint[], claims text[], outcomes text[], delays bigint[], reasons text[],
    http_statuses integer[], details text[], times timestamptz[], durations bigint[]
) RETURNS bigint
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
    SET jit = off
    SET enable_seqscan = off
    SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    settled bigint;
BEGIN
    WITH ended AS MATERIALIZED (
        SELECT o.*, d.place
        FROM unnest(positions, claims::uuid[], outcomes, delays, reasons, http_statuses, details, times, durations)
            AS o (position, claim, outcome, delay, reason, http_status, detail, attempted_at, duration)
        CROSS JOIN LATERAL (
            SELECT d.ctid AS place FROM siwa.deliveries AS d
            WHERE d.endpoint_id = of_endpoint AND d.position = o.position
            OFFSET 0
        ) AS d
    ),
    settled AS (
        UPDATE siwa.deliveries AS d
        SET status = CASE WHEN o.outcome = 'postponed' THEN d.status ELSE o.outcome END,
            attempts = CASE WHEN o.outcome = 'postponed' THEN d.attempts - 1 ELSE d.attempts END,
            next_attempt_at = CASE WHEN o.outcome IN ('retry', 'postponed')
                THEN clock_timestamp() + o.delay * interval '1 microsecond' END,
            claim = NULL,
            claimed_until = NULL,
            reason = coalesce(o.reason, d.reason),
            http_status = CASE WHEN o.reason IS NULL AND o.outcome = 'postponed' THEN d.http_status ELSE o.http_status END,
            first_failed_at = CASE WHEN o.reason IS NULL THEN d.first_failed_at
                ELSE coalesce(d.first_failed_at, clock_timestamp()) END,
            resolved_at = CASE WHEN o.outcome = 'delivered' THEN clock_timestamp() END
        FROM ended AS o
        -- Another daemon may have replaced the claim since the look-up.
        WHERE d.ctid = o.place AND d.claim = o.claim
        RETURNING d.position, d.attempts, o.outcome, o.reason, o.http_status, o.detail, o.attempted_at, o.duration
    ),
    noted AS (
        INSERT INTO siwa.delivery_attempts (
            endpoint_id, position, attempt, attempted_at, duration, reason, http_status, detail
        )
        SELECT
            of_endpoint, s.position, s.attempts + (s.outcome = 'postponed')::integer, s.attempted_at,
            s.duration * interval '1 microsecond', s.reason, s.http_status, s.detail
        FROM settled AS s
        WHERE s.reason IS NOT NULL
    )
    SELECT count(*) INTO settled FROM settled;
    RETURN settled;
END
$$;
COMMENT ON FUNCTION siwa.settle_deliveries IS
    'Stores the outcomes of attempts whose claims are still valid, and counts them. Outcomes: delivered, retry, dead, and postponed
for an attempt that does not count. Delays and durations are in microseconds.';

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
        siwa.publish_changes, siwa.rebase_publication, siwa.publication_age, siwa.position_at, siwa.endpoint_wants,
        siwa.claim_deliveries, siwa.settle_deliveries
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
            'GRANT EXECUTE ON FUNCTION siwa.consent_state, siwa.email_state, siwa.change_type, siwa.change_scope TO %I', role);
        granted := granted || role;
    END LOOP;

    IF 'siwad_daemon' = ANY (granted) THEN
        GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA siwa TO siwad_daemon;
        REVOKE EXECUTE ON FUNCTION siwa.grant_roles, siwa.keep_earlier_attempt FROM siwad_daemon;
        GRANT INSERT, UPDATE ON siwa.accounts, siwa.consents, siwa.signing_keys, siwa.maintenance TO siwad_daemon;
        GRANT INSERT, UPDATE, DELETE ON siwa.account_sessions, siwa.clients TO siwad_daemon;
        GRANT INSERT ON siwa.account_changes, siwa.change_log TO siwad_daemon;
        GRANT UPDATE ON siwa.publication TO siwad_daemon;
        GRANT INSERT, UPDATE, DELETE ON
            siwa.endpoints, siwa.endpoint_states, siwa.endpoint_secrets, siwa.deliveries
            TO siwad_daemon;
        GRANT INSERT, DELETE ON siwa.delivery_attempts TO siwad_daemon;
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
        GRANT EXECUTE ON FUNCTION siwa.publication_age, siwa.position_at, siwa.endpoint_wants TO siwad_reader;
    END IF;

    -- Granted by column, and not on partitions, which would expose the columns that their parent hides.
    FOR target IN
        SELECT
            c.relname AS name,
            string_agg(quote_ident(a.attname), ', ' ORDER BY a.attnum) AS all_columns,
            string_agg(quote_ident(a.attname), ', ' ORDER BY a.attnum)
                FILTER (
                    WHERE c.relname || '.' || a.attname <> ALL (secrets) AND c.relname <> 'endpoint_secrets'
                ) AS open_columns
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
        ELSIF 'siwad_reader' = ANY (granted) AND target.open_columns IS NOT NULL THEN
            EXECUTE format('GRANT SELECT (%s) ON siwa.%I TO siwad_reader', target.open_columns, target.name);
        END IF;
    END LOOP;
    RETURN granted;
END
$$;

SELECT siwa.grant_roles();
