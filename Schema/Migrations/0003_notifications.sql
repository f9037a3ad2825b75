-- What came in: notifications that were applied, dead letters that could not be, and who did what about them.
--
-- Promise: a row of siwa.notifications or siwa.dead_letters is committed before Apple is answered 200. Notifications are
-- append-only and kept by month of issue, so that retention drops whole partitions.

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
    event_type     text COLLATE "C" NOT NULL,
    outcome        text COLLATE "C" NOT NULL,
    source         text COLLATE "C" NOT NULL,
    verified_kid   text COLLATE "C" NOT NULL,
    jws            text COLLATE "C",
    CONSTRAINT notifications_event_type_is_known CHECK (
        event_type IN ('email-disabled', 'email-enabled', 'consent-revoked', 'account-delete', 'account-deleted')
    ),
    CONSTRAINT notifications_outcome_is_known CHECK (outcome IN ('applied', 'superseded', 'unchanged')),
    CONSTRAINT notifications_source_is_known CHECK (source IN ('endpoint', 'spool', 'replay'))
) PARTITION BY RANGE (issued_at);
COMMENT ON TABLE siwa.notifications IS
    'Every verified notification, once per jti; append-only, one partition per month (UTC) of issued_at.';
COMMENT ON COLUMN siwa.notifications.issued_at IS 'The token''s iat.';
COMMENT ON COLUMN siwa.notifications.recorded_at IS 'When its transaction began, by the database''s clock.';
COMMENT ON COLUMN siwa.notifications.event_type IS 'As Apple spelt it: a deletion is account-deleted, in older traffic account-delete.';
COMMENT ON COLUMN siwa.notifications.outcome IS
    'applied: changed a state, an address or sessions; superseded: a newer fact was known; unchanged: nothing new followed.';
COMMENT ON COLUMN siwa.notifications.verified_kid IS 'The key that verified the token at receipt; it rotates away, this record stays.';
COMMENT ON COLUMN siwa.notifications.jws IS 'The compact JWS as received; null once it was erased.';

CREATE FUNCTION siwa.ensure_notification_partitions(from_time timestamptz, to_time timestamptz) RETURNS integer
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
COMMENT ON FUNCTION siwa.ensure_notification_partitions IS
    'Creates the missing monthly partitions of siwa.notifications between two times; returns how many.';

SELECT siwa.ensure_notification_partitions(now() - interval '1 month', now() + interval '2 months');

CREATE FUNCTION siwa.refuse_stale_snapshot() RETURNS boolean
    LANGUAGE plpgsql
AS $$
BEGIN
    RAISE EXCEPTION 'a row changed after the snapshot of this statement was taken'
        USING ERRCODE = 'serialization_failure', HINT = 'Run the statement again.';
END
$$;
COMMENT ON FUNCTION siwa.refuse_stale_snapshot IS
    'Ends the ingest statement when another writer changed a row that it had read, so that history tells what really changed.';

CREATE TABLE siwa.dead_letters (
    id               bigint GENERATED ALWAYS AS IDENTITY,
    received_at      timestamptz NOT NULL,
    last_received_at timestamptz NOT NULL,
    deliveries       integer NOT NULL DEFAULT 1,
    reason           text COLLATE "C" NOT NULL,
    detail           text NOT NULL,
    status           text COLLATE "C" NOT NULL DEFAULT 'open',
    attempts         integer NOT NULL DEFAULT 1,
    body             bytea NOT NULL,
    token_digest     bytea NOT NULL,
    jti              text COLLATE "C",
    aud              text COLLATE "C",
    sub              text COLLATE "C",
    event_type       text COLLATE "C",
    verified_kid     text COLLATE "C",
    verified_at      timestamptz,
    resolved_at      timestamptz,
    resolved_by      text,
    note             text,
    CONSTRAINT dead_letters_pkey PRIMARY KEY (id),
    CONSTRAINT dead_letters_reason_is_known CHECK (
        reason IN (
            'unknown-audience', 'unknown-event-type', 'malformed-claims', 'expired', 'not-yet-valid', 'store-rejected',
            'keys-unavailable'
        )
    ),
    CONSTRAINT dead_letters_status_is_known CHECK (status IN ('open', 'replayed', 'discarded')),
    CONSTRAINT dead_letters_resolved_by_someone CHECK (
        (status = 'open') = (resolved_at IS NULL) AND (status = 'open') = (resolved_by IS NULL)
    ),
    CONSTRAINT dead_letters_verified_by_a_key CHECK ((verified_kid IS NULL) = (verified_at IS NULL)),
    CONSTRAINT dead_letters_only_unverified_lack_a_key CHECK (verified_kid IS NOT NULL OR reason = 'keys-unavailable'),
    CONSTRAINT dead_letters_counts_are_positive CHECK (deliveries > 0 AND attempts > 0),
    CONSTRAINT dead_letters_token_digest_is_sha256 CHECK (octet_length(token_digest) = 32)
);
CREATE UNIQUE INDEX dead_letters_open_token ON siwa.dead_letters (token_digest) WHERE status = 'open';
CREATE INDEX dead_letters_open_reason ON siwa.dead_letters (reason, id) WHERE status = 'open';
CREATE INDEX dead_letters_sub ON siwa.dead_letters (sub) WHERE sub IS NOT NULL;
COMMENT ON TABLE siwa.dead_letters IS
    'Notifications that Apple signed but that could not be processed, and those whose key could not be fetched. Apple does not
send them again: an operator replays or discards them.';
COMMENT ON COLUMN siwa.dead_letters.body IS 'The request body as received.';
COMMENT ON COLUMN siwa.dead_letters.token_digest IS 'SHA-256 of the compact JWS: one open letter per token, however often it comes.';
COMMENT ON COLUMN siwa.dead_letters.deliveries IS 'How often the token was received while the letter was open.';
COMMENT ON COLUMN siwa.dead_letters.attempts IS 'How often processing was tried: at receipt, and once per replay.';
COMMENT ON COLUMN siwa.dead_letters.verified_kid IS 'The key that verified the token at receipt; null for keys-unavailable: never verified.';

CREATE TABLE siwa.operator_actions (
    action_id   bigint GENERATED ALWAYS AS IDENTITY,
    recorded_at timestamptz NOT NULL DEFAULT now(),
    operator    text NOT NULL,
    action      text NOT NULL,
    target      text NOT NULL,
    note        text,
    affected    bigint NOT NULL,
    CONSTRAINT operator_actions_pkey PRIMARY KEY (action_id),
    CONSTRAINT operator_actions_operator_is_not_empty CHECK (operator <> ''),
    CONSTRAINT operator_actions_action_is_not_empty CHECK (action <> ''),
    CONSTRAINT operator_actions_affected_is_a_count CHECK (affected >= 0)
);
COMMENT ON TABLE siwa.operator_actions IS 'Who did what, when, why and to how many. Insert-only.';
COMMENT ON COLUMN siwa.operator_actions.target IS 'What the action was aimed at: an id, or the filter as given.';

CREATE FUNCTION siwa.refuse_change_of_audit() RETURNS trigger
    LANGUAGE plpgsql
AS $$
BEGIN
    RAISE EXCEPTION 'siwa.operator_actions is insert-only: % is refused', TG_OP
        USING ERRCODE = 'insufficient_privilege', HINT = 'Record a further action instead.';
END
$$;
COMMENT ON FUNCTION siwa.refuse_change_of_audit IS 'Keeps siwa.operator_actions insert-only.';

CREATE TRIGGER operator_actions_are_insert_only
    BEFORE UPDATE OR DELETE OR TRUNCATE ON siwa.operator_actions
    FOR EACH STATEMENT EXECUTE FUNCTION siwa.refuse_change_of_audit();

CREATE TABLE siwa.signing_keys (
    kid        text COLLATE "C" NOT NULL,
    jwk        jsonb NOT NULL,
    first_seen timestamptz NOT NULL DEFAULT now(),
    last_seen  timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT signing_keys_pkey PRIMARY KEY (kid),
    CONSTRAINT signing_keys_kid_is_the_keys CHECK (jwk ->> 'kid' = kid)
);
COMMENT ON TABLE siwa.signing_keys IS
    'Every key ever seen in Apple''s key set: lets the daemon start while Apple can''t be reached, and verifies what was kept unverified.';
COMMENT ON COLUMN siwa.signing_keys.last_seen IS 'When a fetched key set last held the key.';
