-- Maintenance: old notifications go, and with time what is personal about people whose Apple Account was deleted.
--
-- Promise: nothing that is dropped or erased here decides a state. The registers stay, so every answer stays the same.

ALTER TABLE siwa.accounts
    ADD COLUMN erased_at timestamptz,
    ADD CONSTRAINT accounts_erased_is_a_tombstone CHECK (
        erased_at IS NULL
        OR (deleted_at IS NOT NULL AND email IS NULL AND email_is_private IS NULL AND email_observed_at = 'infinity')
    );
COMMENT ON COLUMN siwa.accounts.erased_at IS
    'When the personal data of a deleted account were erased. Then email_observed_at is infinity: no address was, is or will be
seen later than that, so no late, repeated or replayed notification brings one back.';

-- Neither mentions a register that moves more than once: other updates of the row stay HOT.
CREATE INDEX accounts_to_erase ON siwa.accounts (deleted_at) WHERE deleted_at IS NOT NULL AND erased_at IS NULL;
CREATE INDEX accounts_erased ON siwa.accounts (erased_at) WHERE erased_at IS NOT NULL;

-- Finds a person's notifications: to erase their tokens, and to say which notification set a register. A partition is made
-- like the parent, so every later one has it too.
CREATE INDEX notifications_sub ON siwa.notifications (sub);

CREATE INDEX dead_letters_resolved_at ON siwa.dead_letters (resolved_at) WHERE resolved_at IS NOT NULL;
COMMENT ON COLUMN siwa.dead_letters.body IS
    'The request body as received; empty once it was erased with the account of its person.';

CREATE TABLE siwa.maintenance (
    task        text COLLATE "C" NOT NULL,
    finished_at timestamptz NOT NULL,
    CONSTRAINT maintenance_pkey PRIMARY KEY (task),
    CONSTRAINT maintenance_task_is_known CHECK (task IN ('partitions', 'retention', 'erasure'))
);
COMMENT ON TABLE siwa.maintenance IS
    'When a daemon last brought each task to its end; the others leave it alone until it is due again.';

CREATE FUNCTION siwa.drop_notification_partition(older_than timestamptz) RETURNS text
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
    CROSS JOIN LATERAL regexp_match(c.relname, '^notifications_y(\d{4,})m(\d\d)$') AS m (parts)
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
COMMENT ON FUNCTION siwa.drop_notification_partition IS
    'Drops the oldest monthly partition of siwa.notifications that ends at or before a time; returns its name, null if there is
none. Gives up with lock_not_available rather than have writers wait for more than a fifth of a second.';
