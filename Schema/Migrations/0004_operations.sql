-- Dead letters, the audit of operators' actions, and the state of the maintenance tasks.
--
-- The daemon answers Apple with 200 only after a dead letter is committed. A replay changes the status in the transaction that
-- records the notification. The reasons are never lost: the letter holds what the last failed attempt found, and
-- siwa.dead_letter_attempts holds what the earlier attempts found.

CREATE TABLE siwa.dead_letters (
    id                  bigint GENERATED ALWAYS AS IDENTITY,
    received_at         timestamptz NOT NULL,
    last_received_at    timestamptz NOT NULL,
    deliveries          integer NOT NULL DEFAULT 1,
    reason              text COLLATE "C" NOT NULL,
    detail              text NOT NULL,
    status              text COLLATE "C" NOT NULL DEFAULT 'open',
    attempts            integer NOT NULL DEFAULT 1,
    body                bytea NOT NULL,
    token_digest        bytea NOT NULL,
    jti                 text COLLATE "C",
    aud                 text COLLATE "C",
    sub                 text COLLATE "C",
    event_type          text COLLATE "C",
    verified_kid        text COLLATE "C",
    verified_at         timestamptz,
    last_failed_at      timestamptz,
    last_failed_by      text,
    last_failed_by_role text,
    resolved_at         timestamptz,
    resolved_by         text,
    resolved_by_role    text,
    outcome             text COLLATE "C",
    note                text,
    CONSTRAINT dead_letters_pkey PRIMARY KEY (id),
    CONSTRAINT dead_letters_reason_is_known CHECK (
        reason IN (
            'unknown-audience', 'unknown-event-type', 'malformed-claims', 'expired', 'not-yet-valid', 'store-rejected',
            'keys-unavailable'
        )
    ),
    CONSTRAINT dead_letters_status_is_known CHECK (status IN ('open', 'replayed', 'discarded')),
    CONSTRAINT dead_letters_resolved_by_someone CHECK (
        (status = 'open') = (resolved_at IS NULL)
        AND (status = 'open') = (resolved_by IS NULL)
        AND (status = 'open') = (resolved_by_role IS NULL)
    ),
    CONSTRAINT dead_letters_outcome_is_known CHECK (outcome IN ('applied', 'superseded', 'unchanged', 'duplicate')),
    CONSTRAINT dead_letters_only_replayed_have_an_outcome CHECK (outcome IS NULL OR status = 'replayed'),
    CONSTRAINT dead_letters_verified_by_a_key CHECK ((verified_kid IS NULL) = (verified_at IS NULL)),
    CONSTRAINT dead_letters_only_unverified_lack_a_key CHECK (verified_kid IS NOT NULL OR reason = 'keys-unavailable'),
    CONSTRAINT dead_letters_counts_are_positive CHECK (deliveries > 0 AND attempts > 0),
    CONSTRAINT dead_letters_token_digest_is_sha256 CHECK (octet_length(token_digest) = 32)
);
CREATE UNIQUE INDEX dead_letters_open_token ON siwa.dead_letters (token_digest) WHERE status = 'open';
CREATE INDEX dead_letters_open_reason ON siwa.dead_letters (reason, id) WHERE status = 'open';
CREATE INDEX dead_letters_sub ON siwa.dead_letters (sub) WHERE sub IS NOT NULL;
CREATE INDEX dead_letters_resolved_at ON siwa.dead_letters (resolved_at) WHERE resolved_at IS NOT NULL;
-- Letters are scanned in the order of their ids. This index contains the columns that filters and counts read. Its size is a
-- twelfth of the table's, so a scan of a million letters is quick with any filter.
CREATE INDEX dead_letters_facts ON siwa.dead_letters (id) INCLUDE (status, reason, aud, event_type, received_at);
COMMENT ON TABLE siwa.dead_letters IS
    'Notifications that Apple signed but that could not be processed, and notifications whose key could not be fetched. Apple
does not send them again: an operator replays or discards them.';
COMMENT ON COLUMN siwa.dead_letters.reason IS 'The reason that the last failed attempt found.';
COMMENT ON COLUMN siwa.dead_letters.body IS
    'The compact JWS as received; empty after the account of its person was erased.';
COMMENT ON COLUMN siwa.dead_letters.token_digest IS
    'SHA-256 of the compact JWS. A token has one open letter, however often it arrives.';
COMMENT ON COLUMN siwa.dead_letters.deliveries IS 'How many times the token was received while the letter was open.';
COMMENT ON COLUMN siwa.dead_letters.attempts IS
    'How many times processing was attempted: once at receipt, and once per replay.';
COMMENT ON COLUMN siwa.dead_letters.verified_kid IS
    'The key that verified the token; null if it was never verified (keys-unavailable).';
COMMENT ON COLUMN siwa.dead_letters.last_failed_at IS 'When a replay last failed; null if none did.';
COMMENT ON COLUMN siwa.dead_letters.last_failed_by IS 'The operator of that replay, as given to the command.';
COMMENT ON COLUMN siwa.dead_letters.last_failed_by_role IS 'The database role of that replay (session_user); set by a trigger.';
COMMENT ON COLUMN siwa.dead_letters.resolved_by IS
    'The operator who replayed or discarded it, as given to the command; siwad for the daemon.';
COMMENT ON COLUMN siwa.dead_letters.resolved_by_role IS
    'The database role that replayed or discarded it (session_user); set by a trigger.';
COMMENT ON COLUMN siwa.dead_letters.outcome IS
    'The effect of the replay, as in siwa.notifications.outcome; duplicate if the notification was recorded before.';
COMMENT ON COLUMN siwa.dead_letters.note IS 'Why it was replayed, discarded or reopened, in the operator''s words.';

CREATE FUNCTION siwa.record_database_role() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    -- Every value of OLD is null for an INSERT.
    NEW.resolved_by_role := CASE
        WHEN NEW.resolved_by IS NULL THEN NULL
        WHEN ROW(NEW.status, NEW.resolved_at, NEW.resolved_by, NEW.outcome, NEW.note)
            IS DISTINCT FROM ROW(OLD.status, OLD.resolved_at, OLD.resolved_by, OLD.outcome, OLD.note) THEN session_user
        ELSE OLD.resolved_by_role
    END;
    NEW.last_failed_by_role := CASE
        WHEN NEW.last_failed_by IS NULL THEN NULL
        WHEN ROW(NEW.last_failed_at, NEW.last_failed_by, NEW.reason, NEW.detail)
            IS DISTINCT FROM ROW(OLD.last_failed_at, OLD.last_failed_by, OLD.reason, OLD.detail) THEN session_user
        ELSE OLD.last_failed_by_role
    END;
    RETURN NEW;
END
$$;
COMMENT ON FUNCTION siwa.record_database_role IS
    'Records the database role (session_user) of every resolution and failed replay, in addition to the operator''s name, which
the command only repeats.';

CREATE TRIGGER dead_letters_record_the_database_role
    BEFORE INSERT OR UPDATE ON siwa.dead_letters
    FOR EACH ROW EXECUTE FUNCTION siwa.record_database_role();

CREATE TABLE siwa.dead_letter_attempts (
    letter_id     bigint NOT NULL,
    attempt       integer NOT NULL,
    attempted_at  timestamptz NOT NULL,
    operator      text,
    database_role text,
    reason        text COLLATE "C" NOT NULL,
    detail        text NOT NULL,
    CONSTRAINT dead_letter_attempts_pkey PRIMARY KEY (letter_id, attempt),
    CONSTRAINT dead_letter_attempts_letter_exists
        FOREIGN KEY (letter_id) REFERENCES siwa.dead_letters (id) ON DELETE CASCADE,
    CONSTRAINT dead_letter_attempts_attempt_is_counted_from_one CHECK (attempt > 0)
);
COMMENT ON TABLE siwa.dead_letter_attempts IS
    'What each failed attempt found, except the last one, which siwa.dead_letters holds. Only a trigger inserts rows.';
COMMENT ON COLUMN siwa.dead_letter_attempts.operator IS 'The operator of the replay; null for the attempt at receipt.';
COMMENT ON COLUMN siwa.dead_letter_attempts.database_role IS
    'The database role of the replay; null for the attempt at receipt.';

CREATE FUNCTION siwa.keep_earlier_attempt() RETURNS trigger
    LANGUAGE plpgsql
    -- No role may insert into siwa.dead_letter_attempts, so this function runs with the owner's rights.
    SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    INSERT INTO siwa.dead_letter_attempts (letter_id, attempt, attempted_at, operator, database_role, reason, detail)
    VALUES (
        OLD.id, OLD.attempts, coalesce(OLD.last_failed_at, OLD.received_at), OLD.last_failed_by, OLD.last_failed_by_role,
        OLD.reason, OLD.detail);
    RETURN NULL;
END
$$;
COMMENT ON FUNCTION siwa.keep_earlier_attempt IS
    'Copies the result of the attempt before to siwa.dead_letter_attempts when a replay fails.';

CREATE TRIGGER dead_letters_keep_earlier_attempts
    AFTER UPDATE ON siwa.dead_letters
    FOR EACH ROW
    WHEN (NEW.attempts > OLD.attempts AND NEW.last_failed_at IS DISTINCT FROM OLD.last_failed_at)
    EXECUTE FUNCTION siwa.keep_earlier_attempt();

CREATE TABLE siwa.operator_actions (
    action_id     bigint GENERATED ALWAYS AS IDENTITY,
    recorded_at   timestamptz NOT NULL DEFAULT now(),
    operator      text NOT NULL,
    database_role text NOT NULL DEFAULT session_user,
    action        text NOT NULL,
    target        text NOT NULL,
    note          text,
    affected      bigint NOT NULL,
    CONSTRAINT operator_actions_pkey PRIMARY KEY (action_id),
    CONSTRAINT operator_actions_operator_is_not_empty CHECK (operator <> ''),
    CONSTRAINT operator_actions_action_is_not_empty CHECK (action <> ''),
    CONSTRAINT operator_actions_affected_is_a_count CHECK (affected >= 0)
);
COMMENT ON TABLE siwa.operator_actions IS 'Actions of operators: who, what, when, why, and how many rows. Insert-only.';
COMMENT ON COLUMN siwa.operator_actions.operator IS 'The operator''s name, as given to the command; siwad for the daemon.';
COMMENT ON COLUMN siwa.operator_actions.database_role IS
    'The database role of the action (session_user). siwad_daemon may not set this column.';
COMMENT ON COLUMN siwa.operator_actions.target IS 'The object of the action: an id, or the filter as given.';
COMMENT ON COLUMN siwa.operator_actions.affected IS
    'How many rows it changed. For dead letters, how many rows it was about to change, so that an interrupted run has an entry
too; siwa.dead_letters shows which letters were changed.';

CREATE FUNCTION siwa.refuse_change_of_audit() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
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

CREATE TABLE siwa.maintenance (
    task        text COLLATE "C" NOT NULL,
    finished_at timestamptz NOT NULL,
    CONSTRAINT maintenance_pkey PRIMARY KEY (task),
    CONSTRAINT maintenance_task_is_known CHECK (task IN ('partitions', 'retention', 'sessions', 'erasure'))
);
COMMENT ON TABLE siwa.maintenance IS
    'When a daemon last completed each task. No daemon repeats a task before it is due.';
